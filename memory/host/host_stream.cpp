#include "memory/host/host_stream.hpp"

#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "base/cache_line.hpp"
#include "base/mutex.hpp"
#include "base/thread.hpp"

namespace cairn {
namespace {

// Issued operations that have not ended; issuing one more blocks. As deep as the queue of a CUDA
// stream: enough to keep the thread busy, small enough that a runaway caller stops.
constexpr std::size_t kMaxQueuedOperations = 1024;
// A blocked caller continues when the queue has drained to this length. Waking it for every single
// operation costs two context switches each, a third of the throughput at 64 KiB per copy.
constexpr std::size_t kRefillOperations = kMaxQueuedOperations / 2;
static_assert(kRefillOperations < kMaxQueuedOperations);
// Up to this many copies travel with the operation, as in the arguments of a small launch on a GPU:
// an allocation of device memory would cost more than theirs on the heap.
constexpr std::size_t kMostCopiesInWork = 32;

// State shared by an event and the operation that signals it; either may outlive the other.
class alignas(kCacheLineBytes) EventState {
 public:
  bool ready() const { return ready_.load(std::memory_order_acquire); }
  void wait() {
    if (ready()) return;
    MutexLock lock(mutex_);
    while (!ready()) reached_.wait(mutex_);
  }
  void signal() {
    std::vector<UniqueFunction<void()>> then;
    {
      MutexLock lock(mutex_);
      ready_.store(true, std::memory_order_release);
      then.swap(then_);
      reached_.notify_all();
    }
    for (auto& call : then) call();
  }
  void when_reached(UniqueFunction<void()> then) {
    {
      MutexLock lock(mutex_);
      if (!ready()) return then_.push_back(std::move(then));
    }
    then();
  }

 private:
  std::atomic<bool> ready_{false};
  Mutex mutex_;
  Condition reached_;
  std::vector<UniqueFunction<void()>> then_ CAIRN_GUARDED_BY(mutex_);
};
static_assert(alignof(EventState) == kCacheLineBytes);

class HostEvent final : public Event {
 public:
  explicit HostEvent(std::shared_ptr<EventState> state) : state_(std::move(state)) {}
  Result<bool> ready() override { return state_->ready(); }
  Result<> wait() override {
    state_->wait();
    return {};
  }
  void when_reached(UniqueFunction<void()> then) override { state_->when_reached(std::move(then)); }
  const std::shared_ptr<EventState>& state() const { return state_; }

 private:
  const std::shared_ptr<EventState> state_;
};

struct Zero {
  std::byte* destination;
  std::uint64_t size_bytes;
};
struct Signal {
  std::shared_ptr<EventState> event;
};
struct Wait {
  std::shared_ptr<EventState> event;
};
// In device memory, which its owner keeps until it has run.
struct Listed {
  std::span<const MemoryCopy> copies;
};
using Operation = std::variant<std::vector<MemoryCopy>, Listed, Zero, Signal, Wait>;

struct Execute {
  void operator()(const std::vector<MemoryCopy>& copies) const { run(copies); }
  void operator()(const Listed& listed) const { run(listed.copies); }
  static void run(std::span<const MemoryCopy> copies) {
    for (const MemoryCopy& copy : copies) {
      std::memcpy(copy.destination, copy.source, copy.size_bytes);
    }
  }
  void operator()(const Zero& zero) const { std::memset(zero.destination, 0, zero.size_bytes); }
  void operator()(const Signal& signal) const { signal.event->signal(); }
  void operator()(const Wait& wait) const { wait.event->wait(); }
};

class alignas(kCacheLineBytes) HostStream final : public Stream {
 public:
  explicit HostStream(int devices) : devices_(devices) {}
  ~HostStream() override {
    {
      MutexLock lock(mutex_);
      closing_ = true;
      work_.notify_one();
    }
    if (thread_.joinable()) thread_.join();
  }

  // A thread's copies have one form.
  Result<> copy(std::span<const MemoryCopy> copies, CopyForm /*form*/,
                const RegionView& list) override {
    if (list.size_bytes() == 0) {
      std::vector<MemoryCopy> wanted(copies.size());
      auto count = take(copies, wanted.data());
      if (!count || *count == 0) return count ? Result<>() : std::move(count).error();
      wanted.resize(*count);
      return issue(std::move(wanted));
    }
    if (list.size_bytes() / sizeof(MemoryCopy) < copies.size()) {
      return Error{ErrorCode::device_error, std::to_string(list.size_bytes()) +
                                                " bytes do not hold a list of " +
                                                std::to_string(copies.size()) + " copies"};
    }
    auto* const first = reinterpret_cast<MemoryCopy*>(list.data());
    auto count = take(copies, first);
    if (!count || *count == 0) return count ? Result<>() : std::move(count).error();
    return issue(Listed{{first, *count}});
  }

  std::uint64_t list_bytes(std::size_t copies) const override {
    return copies <= kMostCopiesInWork ? 0 : copies * sizeof(MemoryCopy);
  }

  Result<> zero(std::byte* destination, std::uint64_t size_bytes) override {
    if (size_bytes == 0) return {};
    if (destination == nullptr) {
      return Error{ErrorCode::device_error,
                   "zeros for " + std::to_string(size_bytes) + " bytes have no destination"};
    }
    return issue(Zero{destination, size_bytes});
  }

  // All host devices share one memory: nothing has to move.
  Result<> prefetch(const RegionView& unified, int device_id) override {
    if (unified.kind() != StorageKind::unified) {
      return Error{ErrorCode::device_error, "only unified memory can be prefetched; this is " +
                                                std::string(to_string(unified.kind()))};
    }
    if (device_id < -1 || device_id >= devices_) {
      return Error{ErrorCode::out_of_range, "there is no device " + std::to_string(device_id) +
                                                " to prefetch to; the last is " +
                                                std::to_string(devices_ - 1)};
    }
    return {};
  }

  Result<std::unique_ptr<Event>> record() override {
    auto state = std::make_shared<EventState>();
    CAIRN_TRY(issue(Signal{state}));
    return std::unique_ptr<Event>(std::make_unique<HostEvent>(std::move(state)));
  }

  Result<> wait_for(Event& event) override {
    const auto* const host_event = dynamic_cast<const HostEvent*>(&event);
    if (host_event == nullptr) {
      return Error{ErrorCode::device_error, "the event is of another runtime"};
    }
    if (host_event->state()->ready()) return {};
    return issue(Wait{host_event->state()});
  }

 private:
  // Writes the copies that have bytes to `to`, and returns their number.
  static Result<std::size_t> take(std::span<const MemoryCopy> copies, MemoryCopy* to) {
    MemoryCopy* next = to;
    for (const MemoryCopy& copy : copies) {
      if (copy.size_bytes == 0) continue;
      if (copy.source == nullptr || copy.destination == nullptr || overlaps_itself(copy)) {
        return Error{ErrorCode::device_error,
                     "a copy of " + std::to_string(copy.size_bytes) +
                         " bytes has no source, no destination, or the two overlap"};
      }
      std::construct_at(next++, copy);
    }
    return static_cast<std::size_t>(next - to);
  }

  Result<> issue(Operation operation) {
    MutexLock lock(mutex_);
    if (!thread_.joinable()) {
      auto thread = Thread::start("host stream", [this](const std::stop_token&) { run(); });
      if (!thread) return std::move(thread).error();
      thread_ = std::move(*thread);
    }
    if (queue_.size() == kMaxQueuedOperations) {
      while (queue_.size() > kRefillOperations) room_.wait(mutex_);
    }
    queue_.push_back(std::move(operation));
    if (queue_.size() == 1) work_.notify_one();
    return {};
  }

  void run() {
    MutexLock lock(mutex_);
    for (;;) {
      while (queue_.empty() && !closing_) work_.wait(mutex_);
      if (queue_.empty()) return;
      // It stays in the queue while it runs, and so counts against the bound. A deque does not move
      // its elements when others are added at its end.
      Operation& operation = queue_.front();
      mutex_.unlock();
      std::visit(Execute{}, operation);
      mutex_.lock();
      queue_.pop_front();
      if (queue_.size() == kRefillOperations) room_.notify_one();
    }
  }

  const int devices_;
  Mutex mutex_;
  Condition work_;
  Condition room_;
  std::deque<Operation> queue_ CAIRN_GUARDED_BY(mutex_);
  bool closing_ CAIRN_GUARDED_BY(mutex_) = false;
  Thread thread_ CAIRN_GUARDED_BY(mutex_);
};
static_assert(alignof(HostStream) == kCacheLineBytes);

}  // namespace

std::unique_ptr<Stream> make_host_stream(int devices) {
  return std::make_unique<HostStream>(devices);
}

}  // namespace cairn
