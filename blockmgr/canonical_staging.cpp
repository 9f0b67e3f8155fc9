#include "blockmgr/canonical_staging.hpp"

#include <algorithm>

#include "layouts/builder.hpp"

namespace cairn {
namespace {

// Two at least: a client that is slow to take one must not stop all others. And no more than
// connections can use at a time.
constexpr std::uint64_t kMinLent = 2;
constexpr std::uint64_t kMaxLent = 1024;
// Beyond so many the server is overloaded, and saying so is better than a longer wait.
constexpr std::size_t kMaxWaiting = 1024;
// What device copies and direct disk I/O want.
constexpr std::uint64_t kAlignment = 4096;

}  // namespace

CanonicalStaging::CanonicalStaging(DeviceRuntime& runtime, const Options& options)
    : runtime_(runtime), options_(options) {}

CanonicalStaging::Block::~Block() {
  if (pool_) pool_->give_back(number_);
}

const BlockLayout& CanonicalStaging::Block::layout() const { return *pool_->layout_; }

std::byte* CanonicalStaging::Block::data() const {
  return layout().address(layout().geometry().locate({.block = number_}));
}

Result<> CanonicalStaging::reserve() {
  if (layout_) return {};
  LayoutConfig shape = options_.shape;
  shape.alignment = kAlignment;
  const std::uint64_t lent =
      std::clamp(options_.budget_bytes / cairn::block_bytes(shape), kMinLent, kMaxLent);
  shape.num_blocks = lent + 1;  // the last stays zero
  auto layout =
      LayoutBuilder().config(shape).fully_contiguous().allocate_pinned(runtime_, {}).build();
  if (!layout) return std::move(layout).error();
  layout_.emplace(std::move(*layout));
  for (auto number = static_cast<std::uint32_t>(lent); number-- > 0;) free_.push_back(number);
  return {};
}

void CanonicalStaging::acquire(Done<Block> done) {
  std::optional<Result<Block>> answer;
  {
    MutexLock lock(mutex_);
    if (auto reserved = reserve(); !reserved) {
      answer.emplace(std::move(reserved).error());
    } else if (!free_.empty()) {
      answer.emplace(Block(shared_from_this(), free_.back()));
      free_.pop_back();
    } else if (waiting_.size() >= kMaxWaiting) {
      answer.emplace(Error{ErrorCode::queue_full, "too many requests wait for staging memory"});
    } else {
      waiting_.push_back(std::move(done));
    }
  }
  if (answer) done(std::move(*answer));
}

Result<CanonicalStaging::Zeros> CanonicalStaging::zeros() {
  MutexLock lock(mutex_);
  CAIRN_TRY(reserve());
  return Zeros{&*layout_, static_cast<std::uint32_t>(layout_->config().num_blocks - 1)};
}

void CanonicalStaging::give_back(std::uint32_t number) {
  Done<Block> next;
  {
    MutexLock lock(mutex_);
    if (waiting_.empty()) {
      free_.push_back(number);
      return;
    }
    next = std::move(waiting_.front());
    waiting_.pop_front();
  }
  next(Block(shared_from_this(), number));
}

}  // namespace cairn
