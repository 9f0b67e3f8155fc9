#include "server/http/body_buffer.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.hpp"

namespace cairn::http {
namespace {

constexpr std::string_view kLargeBodies = "http_bodies";

}  // namespace

Result<std::unique_ptr<BodyMemory>> BodyMemory::create(std::uint64_t limit_bytes) {
  auto small = SizeBucketPool::create({});
  if (!small) return std::move(small).error();
  return std::unique_ptr<BodyMemory>(new BodyMemory(std::move(*small), limit_bytes));
}

BodyMemory::BodyMemory(std::unique_ptr<SizeBucketPool> small, std::uint64_t limit_bytes)
    : small_(std::move(small)),
      limit_bytes_(limit_bytes),
      large_(&Region::system, {.limit_bytes = limit_bytes}) {}

std::vector<NamedAllocator> BodyMemory::statistics() {
  const auto buckets = small_->bucket_statistics();
  return {{"http_small_bodies", "host", small_->statistics(), {buckets.begin(), buckets.end()}},
          {std::string(kLargeBodies), "host", large_.statistics()}};
}

bool BodyMemory::give_back_cached(std::string_view allocator) {
  if (allocator != kLargeBodies) return false;
  large_.trim();
  return true;
}

bool BodyMemory::announce(std::uint64_t bytes) {
  const std::uint64_t before = announced_bytes_.fetch_add(bytes);
  if (before + bytes <= limit_bytes_ / kAnnouncedShare) return true;
  arrived(bytes);
  return false;
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

void BodyBuffer::expect(std::size_t bytes) {
  CAIRN_ASSERT(data_ == nullptr, "what has arrived would be forgotten");
  // If there is no memory now, there may be some when the bytes arrive.
  if (bytes + kBodyPadding <= SizeBucketPool::kMaxBytes) {
    reserve_small(bytes);
  } else if (memory_.announce(bytes)) {
    if (large_.preallocate({.size_bytes = bytes + kBodyPadding, .count = 1})) {
      announced_bytes_ = bytes;
    } else {
      memory_.arrived(bytes);
    }
  }
}

void BodyBuffer::settle() {
  if (data_ == nullptr) return;
  end_announcement();
  if (!small_.empty()) {
    small_.downgrade(size_ + kBodyPadding);
    data_ = small_.data();
    capacity_ = size_;
  }
  memory_.current_bytes_.record(small_.capacity_bytes() + large_.held_bytes());
}

void BodyBuffer::end_announcement() {
  if (announced_bytes_ > 0) memory_.arrived(std::exchange(announced_bytes_, 0));
}

void BodyBuffer::clear() {
  end_announcement();
  if (peak_bytes_ > 0) memory_.peak_bytes_.record(std::exchange(peak_bytes_, 0));
  small_ = {};
  large_.release_all();
  data_ = nullptr;
  capacity_ = 0;
  size_ = 0;
}

bool BodyBuffer::reserve(std::size_t bytes) {
  if (bytes <= capacity_) return true;
  const bool in_bucket = data_ == nullptr || !small_.empty();
  if (announced_bytes_ == 0 && in_bucket && reserve_small(bytes)) return true;
  // At least doubles: outgrown buffers stay allocated until clear(), and together are no larger
  // than this one.
  const std::size_t capacity =
      bytes <= announced_bytes_
          ? announced_bytes_
          : std::max<std::size_t>({bytes, capacity_ * 2, SizeBucketPool::kMaxBytes});
  auto larger = large_.allocate(capacity + kBodyPadding);
  if (!larger) return false;
  if (size_ > 0) std::memcpy(larger->data(), data_, size_);
  peak_bytes_ = std::max(peak_bytes_, small_.capacity_bytes() + large_.held_bytes());
  small_ = {};
  data_ = larger->data();
  capacity_ = capacity;
  return true;
}

bool BodyBuffer::reserve_small(std::size_t bytes) {
  if (bytes + kBodyPadding > SizeBucketPool::kMaxBytes) return false;
  if (small_.empty()) {
    auto acquired = memory_.small_->acquire(bytes + kBodyPadding);
    if (!acquired) return false;
    small_ = std::move(*acquired);
  } else if (!small_.upgrade(bytes + kBodyPadding)) {
    return false;
  }
  // The whole bucket is used, so the next growth must keep all of it.
  const bool whole = small_.upgrade(small_.capacity_bytes()).has_value();
  CAIRN_ASSERT(whole, "a bucket does not hold what it has room for");
  data_ = small_.data();
  capacity_ = small_.capacity_bytes() - kBodyPadding;
  peak_bytes_ = std::max(peak_bytes_, small_.capacity_bytes());
  return true;
}

}  // namespace cairn::http
