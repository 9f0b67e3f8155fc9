#include "tests/simulation/device.hpp"

#include <cstring>
#include <deque>
#include <variant>

#include "memory/exported_memory.hpp"
#include "memory/host/host_runtime.hpp"

namespace cairn::sim {
namespace {

Error device_failure(const char* what) { return {ErrorCode::device_error, what}; }

struct Point {
  bool reached = false;
  std::optional<Error> error = {};
  std::vector<UniqueFunction<void()>> then = {};
};

class QueuedEvent final : public Event {
 public:
  // `alone`: the waiter may hold a lock, so only hardware events run meanwhile.
  QueuedEvent(Queue& queue, std::shared_ptr<Point> point, bool alone)
      : queue_(queue), point_(std::move(point)), alone_(alone) {}
  Result<bool> ready() override {
    // Each call runs one event, so that polling lets others run.
    if (!point_->reached) step();
    if (point_->reached && point_->error) return *point_->error;
    return point_->reached;
  }
  Result<> wait() override {
    while (!point_->reached) step();
    if (point_->error) return *point_->error;
    return {};
  }
  void when_reached(UniqueFunction<void()> then) override {
    if (point_->reached) return then();
    point_->then.push_back(std::move(then));
  }
  const std::shared_ptr<Point>& point() const { return point_; }

 private:
  void step() {
    if (alone_) return queue_.step_hardware_for("an event of a stream");
    queue_.step_for("an event of a stream");
  }
  Queue& queue_;
  const std::shared_ptr<Point> point_;
  const bool alone_;
};

}  // namespace

// A stream. Its destructor waits until all its work is done.
class QueuedStream final : public Stream {
 public:
  QueuedStream(Queue& queue, Device& device) : queue_(queue), device_(device) {}
  ~QueuedStream() override {
    while (!work_.empty()) queue_.step_hardware_for("the end of a stream");
  }

  Result<> copy(std::span<const MemoryCopy> copies, CopyForm) override {
    if (device_.lost_) return device_failure("the simulated device is lost");
    const bool fails = device_.next_fails();
    if (fails && queue_.random().once_in(2)) {
      return device_failure("the simulated device refuses this copy");
    }
    // Longer pieces are copied in two halves.
    constexpr std::uint64_t kSplitBytes = 32;
    Copies now;
    Copies later;
    for (const MemoryCopy& copy : copies) {
      const std::uint64_t half = copy.size_bytes > kSplitBytes ? copy.size_bytes / 2 : 0;
      if (half > 0) now.pieces.push_back({copy.destination, copy.source, half});
      later.pieces.push_back({copy.destination + half, copy.source + half, copy.size_bytes - half});
    }
    later.fails = fails;
    issue(std::move(now));
    issue(std::move(later));
    return {};
  }
  Result<> zero(std::byte* destination, std::uint64_t size_bytes) override {
    if (device_.lost_) return device_failure("the simulated device is lost");
    issue(Zero{destination, size_bytes});
    return {};
  }
  Result<> prefetch(const RegionView&, int) override { return {}; }
  Result<std::unique_ptr<Event>> record() override {
    auto point = std::make_shared<Point>();
    issue(point);
    return std::unique_ptr<Event>(std::make_unique<QueuedEvent>(
        queue_, std::move(point), device_.visibility() != MemoryVisibility::system));
  }
  Result<> wait_for(Event& event) override {
    issue(Awaited{dynamic_cast<QueuedEvent&>(event).point()});
    return {};
  }

 private:
  struct Copies {
    std::vector<MemoryCopy> pieces = {};
    bool fails = false;
  };
  struct Zero {
    std::byte* destination;
    std::uint64_t size_bytes;
  };
  struct Awaited {
    std::shared_ptr<Point> point;
  };
  using Work = std::variant<Copies, Zero, std::shared_ptr<Point>, Awaited>;

  void issue(Work work) {
    work_.push_back(std::move(work));
    if (work_.size() == 1) begin();
  }
  void begin() {
    queue_.after(
        queue_.some_delay(), [this] { do_first(); }, Queue::Kind::hardware);
  }
  void do_first() {
    Work& work = work_.front();
    std::vector<UniqueFunction<void()>> then;
    if (auto* const awaited = std::get_if<Awaited>(&work)) {
      if (!awaited->point->reached) return begin();
      if (awaited->point->error && !broken_) broken_ = awaited->point->error;
    } else if (auto* const copies = std::get_if<Copies>(&work)) {
      if (device_.lost_ && !broken_) broken_ = device_failure("the simulated device is lost");
      if (copies->fails && !broken_) broken_ = device_failure("the simulated device broke a copy");
      // A broken stream copies nothing more.
      for (const MemoryCopy& copy : copies->pieces) {
        if (!broken_) std::memcpy(copy.destination, copy.source, copy.size_bytes);
      }
    } else if (auto* const zero = std::get_if<Zero>(&work)) {
      if (!broken_) std::memset(zero->destination, 0, zero->size_bytes);
    } else {
      Point& point = *std::get<std::shared_ptr<Point>>(work);
      point.error = broken_;
      point.reached = true;
      then.swap(point.then);
    }
    work_.pop_front();
    if (!work_.empty()) begin();
    for (auto& call : then) call();
  }

  Queue& queue_;
  Device& device_;
  std::deque<Work> work_;
  std::optional<Error> broken_;  // stays set, as a device's errors do
};

Device::Device(Queue& queue, Options options)
    : queue_(queue), options_(options), real_(make_host_runtime({}).value()) {}
Device::~Device() = default;

void Device::lose() { lost_ = "the simulated device is lost"; }

bool Device::next_fails() {
  const bool fails = options_.fails_once_in != 0 && queue_.random().once_in(options_.fails_once_in);
  if (fails) ++failures_;
  return fails;
}

Result<Region> Device::allocate_device(std::uint64_t size_bytes, DeviceOptions options) {
  if (lost_) return device_failure("the simulated device is lost");
  return real_->allocate_device(size_bytes, options);
}
Result<Region> Device::allocate_pinned(std::uint64_t size_bytes, PinnedOptions options) {
  if (lost_) return device_failure("the simulated device is lost");
  return real_->allocate_pinned(size_bytes, options);
}
Result<Region> Device::allocate_unified(int device_id, std::uint64_t size_bytes) {
  return real_->allocate_unified(device_id, size_bytes);
}
Result<Region> Device::import_memory(const ExportedMemory& memory, ImportOptions options) {
  return real_->import_memory(memory, options);
}
Result<std::unique_ptr<Stream>> Device::create_stream(int) {
  if (lost_) return device_failure("the simulated device is lost");
  return std::unique_ptr<Stream>(std::make_unique<QueuedStream>(queue_, *this));
}

}  // namespace cairn::sim
