#include "tests/fakes/faulty_runtime.hpp"

#include <array>
#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "base/assert.hpp"
#include "base/mutex.hpp"
#include "memory/exported_memory.hpp"

namespace cairn::fakes {

std::string_view to_string(Fault fault) {
  switch (fault) {
    case Fault::allocate:
      return "allocate";
    case Fault::create_stream:
      return "create_stream";
    case Fault::copy:
      return "copy";
    case Fault::copy_later:
      return "copy_later";
    case Fault::record:
      return "record";
    case Fault::event:
      return "event";
  }
  invariant_broken("Fault", "a value outside the enumeration");
}

class FaultyRuntime::Plan {
 public:
  void fail_nth(Fault fault, std::uint64_t n) {
    Kind& kind = at(fault);
    kind.fails_at = n == 0 ? 0 : kind.count.load() + n;
  }
  std::uint64_t count(Fault fault) const { return kinds_[static_cast<std::size_t>(fault)].count; }
  std::uint64_t failed() const { return failed_; }

  // Counts an operation. Returns its error if it is the one to fail.
  std::optional<Error> next(Fault fault) {
    Kind& kind = at(fault);
    const std::uint64_t number = ++kind.count;
    if (number != kind.fails_at) return std::nullopt;
    ++failed_;
    return Error{ErrorCode::device_error, "injected: " + std::string(to_string(fault)) +
                                              " number " + std::to_string(number)};
  }

  void hold_callbacks() {
    MutexLock lock(mutex_);
    holds_ = true;
  }
  void release_callbacks() {
    std::vector<UniqueFunction<void()>> held;
    {
      MutexLock lock(mutex_);
      holds_ = false;
      held.swap(held_);
    }
    for (auto& tell : held) tell();
  }
  void tell(UniqueFunction<void()> then) {
    {
      MutexLock lock(mutex_);
      if (holds_) {
        held_.push_back(std::move(then));
        return held_more_.notify_all();
      }
    }
    then();
  }
  void wait_for_held(std::size_t events) {
    MutexLock lock(mutex_);
    while (held_.size() < events) held_more_.wait(mutex_);
  }

 private:
  struct Kind {
    std::atomic<std::uint64_t> count{0};
    std::atomic<std::uint64_t> fails_at{0};
  };
  Kind& at(Fault fault) { return kinds_[static_cast<std::size_t>(fault)]; }
  std::array<Kind, kFaults> kinds_;
  std::atomic<std::uint64_t> failed_{0};
  Mutex mutex_;
  Condition held_more_;
  bool holds_ CAIRN_GUARDED_BY(mutex_) = false;
  std::vector<UniqueFunction<void()>> held_ CAIRN_GUARDED_BY(mutex_);
};

namespace {

class FaultyEvent final : public Event {
 public:
  FaultyEvent(std::unique_ptr<Event> real, std::optional<Error> error,
              std::shared_ptr<FaultyRuntime::Plan> plan)
      : real_(std::move(real)), error_(std::move(error)), plan_(std::move(plan)) {}

  Result<bool> ready() override {
    auto reached = real_->ready();
    if (reached && *reached && error_) return *error_;
    return reached;
  }
  Result<> wait() override {
    CAIRN_TRY(real_->wait());
    if (error_) return *error_;
    return {};
  }
  void when_reached(UniqueFunction<void()> then) override {
    real_->when_reached(
        [plan = plan_, then = std::move(then)]() mutable { plan->tell(std::move(then)); });
  }
  Event& real() { return *real_; }
  const std::optional<Error>& error() const { return error_; }

 private:
  const std::unique_ptr<Event> real_;
  const std::optional<Error> error_;
  const std::shared_ptr<FaultyRuntime::Plan> plan_;
};

class FaultyStream final : public Stream {
 public:
  FaultyStream(std::unique_ptr<Stream> real, std::shared_ptr<FaultyRuntime::Plan> plan)
      : real_(std::move(real)), plan_(std::move(plan)) {}

  std::uint64_t list_bytes(std::size_t copies) const override { return real_->list_bytes(copies); }
  Result<> copy(std::span<const MemoryCopy> copies, CopyForm form,
                const RegionView& list) override {
    auto later = plan_->next(Fault::copy_later);
    if (auto error = plan_->next(Fault::copy)) return *std::move(error);
    if (later) {
      MutexLock lock(mutex_);
      broken_ = std::move(later);
      return real_->copy(copies.first(copies.size() / 2), form, list);
    }
    return real_->copy(copies, form, list);
  }
  Result<> zero(std::byte* destination, std::uint64_t size_bytes) override {
    return real_->zero(destination, size_bytes);
  }
  Result<> prefetch(const RegionView& unified, int device_id) override {
    return real_->prefetch(unified, device_id);
  }
  Result<std::unique_ptr<Event>> record() override {
    auto at_event = plan_->next(Fault::event);
    if (auto error = plan_->next(Fault::record)) return *std::move(error);
    auto real = real_->record();
    if (!real) return real;
    MutexLock lock(mutex_);
    return std::unique_ptr<Event>(std::make_unique<FaultyEvent>(
        std::move(real).value(), broken_ ? broken_ : std::move(at_event), plan_));
  }
  Result<> wait_for(Event& event) override {
    auto* const faulty = dynamic_cast<FaultyEvent*>(&event);
    if (faulty == nullptr) {
      return Error{ErrorCode::device_error, "the event is of another runtime"};
    }
    {
      MutexLock lock(mutex_);
      if (faulty->error() && !broken_) broken_ = faulty->error();
    }
    return real_->wait_for(faulty->real());
  }

 private:
  const std::unique_ptr<Stream> real_;
  const std::shared_ptr<FaultyRuntime::Plan> plan_;
  Mutex mutex_;
  std::optional<Error> broken_ CAIRN_GUARDED_BY(mutex_);  // sticky, like a device's errors
};

}  // namespace

FaultyRuntime::FaultyRuntime(std::unique_ptr<DeviceRuntime> real)
    : real_(std::move(real)), plan_(std::make_shared<Plan>()) {}
FaultyRuntime::~FaultyRuntime() = default;

void FaultyRuntime::fail_nth(Fault fault, std::uint64_t n) { plan_->fail_nth(fault, n); }
void FaultyRuntime::hold_callbacks() { plan_->hold_callbacks(); }
void FaultyRuntime::release_callbacks() { plan_->release_callbacks(); }
void FaultyRuntime::wait_for_held(std::size_t events) { plan_->wait_for_held(events); }
std::uint64_t FaultyRuntime::count(Fault fault) const { return plan_->count(fault); }
std::uint64_t FaultyRuntime::failed() const { return plan_->failed(); }

std::string_view FaultyRuntime::name() const { return real_->name(); }
std::span<const DeviceInfo> FaultyRuntime::devices() const { return real_->devices(); }
MemoryVisibility FaultyRuntime::visibility() const { return real_->visibility(); }
void FaultyRuntime::lose(std::string why) {
  MutexLock lock(mutex_);
  lost_ = std::move(why);
}

std::optional<std::string> FaultyRuntime::lost() const {
  MutexLock lock(mutex_);
  return lost_ ? lost_ : real_->lost();
}

Result<Region> FaultyRuntime::allocate_device(std::uint64_t size_bytes, DeviceOptions options) {
  if (auto error = plan_->next(Fault::allocate)) return *std::move(error);
  return real_->allocate_device(size_bytes, options);
}

Result<Region> FaultyRuntime::allocate_pinned(std::uint64_t size_bytes, PinnedOptions options) {
  if (auto error = plan_->next(Fault::allocate)) return *std::move(error);
  return real_->allocate_pinned(size_bytes, options);
}

Result<Region> FaultyRuntime::allocate_unified(int device_id, std::uint64_t size_bytes) {
  if (auto error = plan_->next(Fault::allocate)) return *std::move(error);
  return real_->allocate_unified(device_id, size_bytes);
}

Result<Region> FaultyRuntime::import_memory(const ExportedMemory& memory, ImportOptions options) {
  if (auto error = plan_->next(Fault::allocate)) return *std::move(error);
  return real_->import_memory(memory, options);
}

Result<std::unique_ptr<Stream>> FaultyRuntime::create_stream(int device_id) {
  if (auto error = plan_->next(Fault::create_stream)) return *std::move(error);
  auto real = real_->create_stream(device_id);
  if (!real) return real;
  return std::unique_ptr<Stream>(std::make_unique<FaultyStream>(std::move(real).value(), plan_));
}

}  // namespace cairn::fakes
