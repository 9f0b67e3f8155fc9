#include "memory/alloc/allocation_scope.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "base/assert.hpp"

namespace cairn {

Result<std::span<std::byte>> AllocationScope::allocate(std::uint64_t size_bytes) {
  // A request has few buffers: checking each is faster than keeping them sorted.
  auto best = ready_.end();
  for (auto buffer = ready_.begin(); size_bytes > 0 && buffer != ready_.end(); ++buffer) {
    if (buffer->capacity_bytes() < size_bytes) continue;
    if (best == ready_.end() || buffer->capacity_bytes() < best->capacity_bytes()) best = buffer;
  }
  if (best == ready_.end()) {
    CAIRN_TRY(take_from_pool(size_bytes));
    best = std::prev(ready_.end());
  }
  std::swap(*best, ready_.back());
  in_use_.push_back(std::move(ready_.back()));
  ready_.pop_back();
  const SlabPool::Buffer& buffer = in_use_.back();
  current_bytes_ += buffer.capacity_bytes();
  peak_bytes_ = std::max(peak_bytes_, current_bytes_);
  return std::span<std::byte>(buffer.data(), size_bytes);
}

Error AllocationScope::too_many(const Objects& objects) {
  return {ErrorCode::out_of_range, std::to_string(objects.count) + " objects of " +
                                       std::to_string(objects.each) + " bytes are more than the " +
                                       std::to_string(SlabPool::kMaxBytes) +
                                       " bytes of the largest allocation"};
}

Result<> AllocationScope::preallocate(Buffers buffers) {
  for (std::uint32_t taken = 0; taken < buffers.count; ++taken) {
    auto result = take_from_pool(buffers.size_bytes);
    if (result) continue;
    for (; taken > 0; --taken) {
      held_bytes_ -= ready_.back().capacity_bytes();
      ready_.pop_back();
    }
    return result;
  }
  return {};
}

Result<> AllocationScope::take_from_pool(std::uint64_t size_bytes) {
  const bool valid = size_bytes > 0 && size_bytes <= SlabPool::kMaxBytes;
  if (valid && SlabPool::class_bytes(size_bytes) > limit_bytes_ - held_bytes_) {
    return Error{ErrorCode::no_capacity, "a request may hold " + std::to_string(limit_bytes_) +
                                             " bytes; " + std::to_string(size_bytes) +
                                             " more than its " + std::to_string(held_bytes_) +
                                             " are too many"};
  }
  auto buffer = pool_.allocate(size_bytes);
  if (!buffer) return std::move(buffer).error();
  held_bytes_ += buffer->capacity_bytes();
  ready_.push_back(std::move(*buffer));
  return {};
}

void AllocationScope::release(std::span<std::byte> bytes) {
  const auto found = std::ranges::find(in_use_, bytes.data(), &SlabPool::Buffer::data);
  CAIRN_ASSERT(found != in_use_.end(), "these bytes are not of this request");
  current_bytes_ -= found->capacity_bytes();
  ready_.push_back(std::move(*found));
  std::swap(*found, in_use_.back());
  in_use_.pop_back();
}

void AllocationScope::release_all() {
  in_use_.clear();
  ready_.clear();
  current_bytes_ = 0;
  held_bytes_ = 0;
}

}  // namespace cairn
