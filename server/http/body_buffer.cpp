#include "server/http/body_buffer.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.hpp"

namespace cairn::http {

Result<std::unique_ptr<BodyMemory>> BodyMemory::create(std::uint64_t limit_bytes) {
  auto small = SizeBucketPool::create({});
  if (!small) return std::move(small).error();
  return std::unique_ptr<BodyMemory>(new BodyMemory(std::move(*small), limit_bytes));
}

BodyMemory::BodyMemory(std::unique_ptr<SizeBucketPool> small, std::uint64_t limit_bytes)
    : small_(std::move(small)),
      limit_bytes_(limit_bytes),
      large_(&Region::system, {.limit_bytes = limit_bytes}) {}

std::vector<NamedAllocator> BodyMemory::statistics() const {
  return {{"http_small_bodies", "host", small_->statistics()},
          {"http_bodies", "host", large_.statistics()}};
}

void BodyMemory::trim_idle() {
  const std::uint64_t allocations = large_.statistics().allocations;
  if (std::exchange(allocations_at_trim_, allocations) == allocations) large_.trim();
}

bool BodyBuffer::append(std::span<const std::byte> bytes) {
  if (bytes.empty()) return true;
  if (!reserve(size_ + bytes.size())) return false;
  std::memcpy(data_ + size_, bytes.data(), bytes.size());
  size_ += bytes.size();
  return true;
}

std::span<std::byte> BodyBuffer::room(std::size_t max_bytes) {
  if (size_ == capacity_ && !reserve(size_ + 1)) return {};
  return {data_ + size_, std::min(max_bytes, capacity_ - size_)};
}

void BodyBuffer::clear() {
  if (data_ == nullptr) return;
  small_ = {};
  large_.release_all();
  data_ = nullptr;
  capacity_ = 0;
  size_ = 0;
}

bool BodyBuffer::reserve(std::size_t bytes) {
  if (bytes <= capacity_) return true;
  const bool in_bucket = data_ == nullptr || !small_.empty();
  if (in_bucket && bytes + kBodyPadding <= SizeBucketPool::kMaxBytes) {
    Result<> grown;
    if (small_.empty()) {
      auto acquired = memory_.small_->acquire(bytes + kBodyPadding);
      if (acquired) {
        small_ = std::move(*acquired);
      } else {
        grown = std::move(acquired).error();
      }
    } else {
      grown = small_.upgrade(bytes + kBodyPadding);
    }
    if (grown) {
      // All of the bucket is used, so all of it has to be kept at the next growth.
      const bool whole = small_.upgrade(small_.capacity_bytes()).has_value();
      CAIRN_ASSERT(whole, "a bucket does not hold what it has room for");
      data_ = small_.data();
      capacity_ = small_.capacity_bytes() - kBodyPadding;
      return true;
    }
  }
  // At least doubled: what was outgrown stays the scope's until clear(), and is no more than this.
  const std::size_t capacity =
      std::max<std::size_t>({bytes, capacity_ * 2, SizeBucketPool::kMaxBytes});
  auto larger = large_.allocate(capacity + kBodyPadding);
  if (!larger) return false;
  if (size_ > 0) std::memcpy(larger->data(), data_, size_);
  small_ = {};
  data_ = larger->data();
  capacity_ = capacity;
  return true;
}

}  // namespace cairn::http
