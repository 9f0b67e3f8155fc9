#include "memory/alloc/size_bucket_pool.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/assert.hpp"

namespace cairn {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// REQUIRES: size_bytes <= kMaxBytes.
std::uint32_t bucket_for(std::uint64_t size_bytes) {
  const auto found = std::ranges::lower_bound(SizeBucketPool::kBucketBytes, size_bytes);
  return static_cast<std::uint32_t>(found - SizeBucketPool::kBucketBytes.begin());
}

}  // namespace

Result<std::unique_ptr<SizeBucketPool>> SizeBucketPool::create(const Options& options) {
  std::uint64_t total_bytes = 0;
  for (std::size_t i = 0; i < kBuckets; ++i) total_bytes += options.buffers[i] * kBucketBytes[i];
  auto memory = Region::system(total_bytes);
  if (!memory) return std::move(memory).error();
  return std::unique_ptr<SizeBucketPool>(new SizeBucketPool(std::move(*memory), options));
}

SizeBucketPool::SizeBucketPool(Region memory, const Options& options) : memory_(std::move(memory)) {
  std::byte* data = memory_.data();
  for (std::size_t i = 0; i < kBuckets; ++i) {
    buckets_[i] = std::make_unique<Bucket>(data, options.buffers[i]);
    data += options.buffers[i] * kBucketBytes[i];
  }
}

SizeBucketPool::~SizeBucketPool() {
  CAIRN_ASSERT(allocated_bytes_ == 0, "memory would be freed under its user");
}

Result<SizeBucketPool::Buffer> SizeBucketPool::acquire(std::uint64_t size_bytes) {
  auto buffer = take(size_bytes);
  if (!buffer) return buffer;
  allocations_.fetch_add(1, kRelaxed);
  if (buffer->bucket_ != bucket_for(size_bytes)) helped_out_.fetch_add(1, kRelaxed);
  return buffer;
}

Result<SizeBucketPool::Buffer> SizeBucketPool::take(std::uint64_t size_bytes) {
  if (size_bytes == 0 || size_bytes > kMaxBytes) {
    return Error{ErrorCode::out_of_range, "a buffer has 1 to " + std::to_string(kMaxBytes) +
                                              " bytes; this one " + std::to_string(size_bytes)};
  }
  const std::uint32_t home = bucket_for(size_bytes);
  for (std::uint32_t number = home; number < kBuckets; ++number) {
    Bucket& bucket = *buckets_[number];
    const auto index = bucket.free.pop();
    if (number == home) (index ? bucket.hits : bucket.misses).fetch_add(1, kRelaxed);
    if (!index) continue;
    bucket.in_use.fetch_add(1, kRelaxed);
    const std::uint64_t now =
        allocated_bytes_.fetch_add(kBucketBytes[number], kRelaxed) + kBucketBytes[number];
    std::uint64_t peak = peak_allocated_bytes_.load(kRelaxed);
    while (now > peak && !peak_allocated_bytes_.compare_exchange_weak(peak, now, kRelaxed)) {
    }
    Buffer buffer;
    buffer.pool_ = this;
    buffer.data_ = bucket.data + *index * kBucketBytes[number];
    buffer.size_bytes_ = size_bytes;
    buffer.bucket_ = number;
    buffer.index_ = *index;
    return buffer;
  }
  return Error{ErrorCode::no_capacity,
               "all buffers of " + std::to_string(size_bytes) + " bytes and more are in use"};
}

void SizeBucketPool::give_back(std::uint32_t number, std::uint32_t index) {
  Bucket& bucket = *buckets_[number];
  bucket.in_use.fetch_sub(1, kRelaxed);
  bucket.free.push(index);
  // The last access: the pool may be destroyed once every buffer is returned.
  allocated_bytes_.fetch_sub(kBucketBytes[number], std::memory_order_release);
}

SizeBucketPool::Buffer::~Buffer() {
  if (pool_ == nullptr) return;
  pool_->frees_.fetch_add(1, kRelaxed);
  pool_->give_back(bucket_, index_);
}

void SizeBucketPool::Buffer::swap(Buffer& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(bucket_, other.bucket_);
  std::swap(index_, other.index_);
}

Result<> SizeBucketPool::Buffer::upgrade(std::uint64_t size_bytes) {
  CAIRN_ASSERT(pool_ != nullptr && size_bytes >= size_bytes_, "an upgrade would lose bytes");
  if (size_bytes <= capacity_bytes()) {
    size_bytes_ = size_bytes;
    return {};
  }
  auto larger = pool_->take(size_bytes);
  if (!larger) return std::move(larger).error();
  std::memcpy(larger->data_, data_, size_bytes_);
  pool_->buckets_[larger->bucket_]->upgrades.fetch_add(1, kRelaxed);
  pool_->give_back(bucket_, index_);
  pool_ = nullptr;
  swap(*larger);
  return {};
}

void SizeBucketPool::Buffer::downgrade(std::uint64_t size_bytes) {
  CAIRN_ASSERT(pool_ != nullptr && size_bytes > 0 && size_bytes <= size_bytes_,
               "a downgrade would add bytes that nobody wrote");
  size_bytes_ = size_bytes;
  if (bucket_for(size_bytes) == bucket_) return;
  auto smaller = pool_->take(size_bytes);
  if (!smaller) return;  // this one still holds it
  if (smaller->bucket_ < bucket_) {
    std::memcpy(smaller->data_, data_, size_bytes);
    pool_->buckets_[smaller->bucket_]->downgrades.fetch_add(1, kRelaxed);
    swap(*smaller);
  }
  pool_->give_back(smaller->bucket_, smaller->index_);
  smaller->pool_ = nullptr;
}

std::array<BucketStatistics, SizeBucketPool::kBuckets> SizeBucketPool::bucket_statistics() const {
  std::array<BucketStatistics, kBuckets> all;
  for (std::size_t i = 0; i < kBuckets; ++i) {
    const Bucket& bucket = *buckets_[i];
    all[i] = {.buffer_bytes = kBucketBytes[i],
              .in_use = bucket.in_use,
              .hits = bucket.hits,
              .misses = bucket.misses,
              .upgrades = bucket.upgrades,
              .downgrades = bucket.downgrades};
  }
  return all;
}

AllocatorStatistics SizeBucketPool::statistics() const {
  AllocatorStatistics now;
  now.reserved_bytes = memory_.size_bytes();
  now.peak_reserved_bytes = now.reserved_bytes;
  now.limit_bytes = now.reserved_bytes;
  now.allocated_bytes = allocated_bytes_;
  now.cached_bytes = now.reserved_bytes - now.allocated_bytes;
  now.peak_allocated_bytes = peak_allocated_bytes_;
  now.allocations = allocations_;
  now.cache_misses = std::min<std::uint64_t>(helped_out_, now.allocations);
  now.cache_hits = now.allocations - now.cache_misses;
  now.frees = frees_;
  for (std::size_t i = 0; i < kBuckets; ++i) {
    if (buckets_[i]->in_use < buckets_[i]->free.capacity()) {
      now.largest_free_bytes = kBucketBytes[i];
    }
  }
  return now;
}

}  // namespace cairn
