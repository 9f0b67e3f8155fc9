#include "tests/simulation/device.hpp"

#include <cstring>
#include <deque>
#include <memory>
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
  QueuedEvent(Queue& queue, std::shared_ptr<Point> point)
      : queue_(queue), point_(std::move(point)) {}
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
  // The waiter may hold a lock of an allocator, so only hardware events run meanwhile.
  void step() { queue_.step_hardware_for("an event of a stream"); }
  Queue& queue_;
  const std::shared_ptr<Point> point_;
};

}  // namespace

// A stream. Its destructor waits until all its work is done.
class QueuedStream final : public Stream {
 public:
  QueuedStream(Queue& queue, Device& device) : queue_(queue), device_(device) {}
  ~QueuedStream() override {
    while (!work_.empty()) queue_.step_hardware_for("the end of a stream");
  }

  Result<> copy(std::span<const MemoryCopy> copies, CopyForm, const RegionView& list) override {
    if (device_.lost_) return device_failure("the simulated device is lost");
    const bool fails = device_.next_fails();
    if (fails && queue_.random().once_in(2)) {
      return device_failure("the simulated device refuses this copy");
    }
    Copies work;
    if (list.size_bytes() == 0) {
      work.own = std::make_shared<std::vector<MemoryCopy>>(copies.begin(), copies.end());
      work.pieces = *work.own;
    } else {
      auto* const first = reinterpret_cast<MemoryCopy*>(list.data());
      std::uninitialized_copy(copies.begin(), copies.end(), first);
      work.pieces = {first, copies.size()};
    }
    issue(work);
    work.is_second = true;
    work.fails = fails;
    issue(std::move(work));
    return {};
  }
  // Read when the copies are done: memory that is reused too early gives wrong bytes.
  std::uint64_t list_bytes(std::size_t copies) const override {
    return copies < 2 ? 0 : copies * sizeof(MemoryCopy);
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
    return std::unique_ptr<Event>(std::make_unique<QueuedEvent>(queue_, std::move(point)));
  }
  Result<> wait_for(Event& event) override {
    issue(Awaited{dynamic_cast<QueuedEvent&>(event).point()});
    return {};
  }

 private:
  // Longer pieces are copied in two halves, one after the other.
  struct Copies {
    std::shared_ptr<std::vector<MemoryCopy>> own = {};  // null: the pieces lie in device memory
    std::span<const MemoryCopy> pieces = {};
    bool is_second = false;
    bool fails = false;

    void run() const {
      constexpr std::uint64_t kSplitBytes = 32;
      for (const MemoryCopy& piece : pieces) {
        const std::uint64_t half = piece.size_bytes > kSplitBytes ? piece.size_bytes / 2 : 0;
        const std::uint64_t begin = is_second ? half : 0;
        const std::uint64_t end = is_second ? piece.size_bytes : half;
        std::memcpy(piece.destination + begin, piece.source + begin, end - begin);
      }
    }
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
      if (!broken_) copies->run();  // a broken stream copies nothing more
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
