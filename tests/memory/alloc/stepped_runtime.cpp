#include "tests/memory/alloc/stepped_runtime.hpp"

#include <algorithm>
#include <utility>

namespace cairn::fakes {
namespace {

class SteppedEvent final : public Event {
 public:
  SteppedEvent(std::shared_ptr<StreamSteps> steps, std::uint64_t point)
      : steps_(std::move(steps)), point_(point) {}
  Result<bool> ready() override { return steps_->done >= point_; }
  Result<> wait() override {
    steps_->done = std::max(steps_->done, point_);
    return {};
  }
  void when_reached(UniqueFunction<void()> then) override {
    static_cast<void>(wait());
    then();
  }

 private:
  const std::shared_ptr<StreamSteps> steps_;
  const std::uint64_t point_;
};

class SteppedStream final : public Stream {
 public:
  ~SteppedStream() override { steps_->done = steps_->issued; }
  Result<> copy(std::span<const MemoryCopy>, CopyForm, const RegionView&) override {
    return issue();
  }
  Result<> zero(std::byte*, std::uint64_t) override { return issue(); }
  Result<> prefetch(const RegionView&, int) override { return issue(); }
  Result<std::unique_ptr<Event>> record() override {
    return std::unique_ptr<Event>(std::make_unique<SteppedEvent>(steps_, steps_->issued));
  }
  Result<> wait_for(Event&) override { return issue(); }
  StreamSteps& steps() { return *steps_; }

 private:
  Result<> issue() {
    ++steps_->issued;
    return {};
  }
  const std::shared_ptr<StreamSteps> steps_ = std::make_shared<StreamSteps>();
};

struct Addresses final : RegionBacking {
  Addresses(std::shared_ptr<SteppedRuntime::Book> of, std::byte* first, std::uint64_t size)
      : book(std::move(of)), data(first), size_bytes(size) {}
  ~Addresses() override {
    book->live.erase(data);
    book->gone.emplace_back(data, size_bytes);
    book->live_bytes -= size_bytes;
    book->free_bytes += size_bytes;
  }
  const std::shared_ptr<SteppedRuntime::Book> book;
  std::byte* const data;
  const std::uint64_t size_bytes;
};

}  // namespace

StreamSteps& SteppedRuntime::steps(Stream& stream) {
  return dynamic_cast<SteppedStream&>(stream).steps();
}

Result<Region> SteppedRuntime::allocate(StorageKind kind, std::uint64_t size_bytes) {
  if (size_bytes > book_->free_bytes) return Error{ErrorCode::no_capacity, "the device is full"};
  auto* const data = reinterpret_cast<std::byte*>(book_->next_address);
  book_->next_address += size_bytes;
  book_->free_bytes -= size_bytes;
  book_->live_bytes += size_bytes;
  book_->live.emplace(data, size_bytes);
  return Region::adopt({.kind = kind, .device_id = 0, .data = data, .size_bytes = size_bytes},
                       std::make_unique<Addresses>(book_, data, size_bytes));
}

Result<Region> SteppedRuntime::allocate_device(std::uint64_t size_bytes, DeviceOptions) {
  return allocate(StorageKind::device, size_bytes);
}
Result<Region> SteppedRuntime::allocate_pinned(std::uint64_t size_bytes, PinnedOptions) {
  return allocate(StorageKind::pinned, size_bytes);
}
Result<Region> SteppedRuntime::import_memory(const ExportedMemory&, ImportOptions) {
  return Error{ErrorCode::impossible, "a stepped runtime imports nothing"};
}

Result<Region> SteppedRuntime::allocate_unified(int, std::uint64_t size_bytes) {
  return allocate(StorageKind::unified, size_bytes);
}
Result<std::unique_ptr<Stream>> SteppedRuntime::create_stream(int) {
  return std::unique_ptr<Stream>(std::make_unique<SteppedStream>());
}

}  // namespace cairn::fakes
