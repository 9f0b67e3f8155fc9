#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "base/cache_line.hpp"
#include "base/result.hpp"
#include "memory/alloc/index_free_list.hpp"
#include "memory/alloc/statistics.hpp"
#include "memory/region.hpp"

namespace cairn {

// Small host buffers in five sizes, allocated at the start and given out without a lock. For memory
// that a request needs often and briefly: heads, hot bodies, lists of addresses. If a bucket is
// empty, the next larger one helps out. Thread-safe.
class SizeBucketPool {
 public:
  static constexpr std::size_t kBuckets = 5;
  static constexpr std::array<std::uint64_t, kBuckets> kBucketBytes = {256, 1 << 10, 4 << 10,
                                                                       16 << 10, 64 << 10};
  static constexpr std::uint64_t kMaxBytes = kBucketBytes.back();

  struct Options {
    // Buffers of each size. The default is 1 to 16 MiB per bucket, 31 MiB in all; the machine
    // provides only the pages that are touched.
    std::array<std::uint32_t, kBuckets> buffers = {4096, 2048, 1024, 512, 256};
  };
  // no_capacity: the machine does not have the memory; out_of_range: no buffers at all.
  static Result<std::unique_ptr<SizeBucketPool>> create(const Options& options);
  // REQUIRES: every buffer has been returned.
  ~SizeBucketPool();
  SizeBucketPool(const SizeBucketPool&) = delete;
  SizeBucketPool& operator=(const SizeBucketPool&) = delete;

  // Memory of one user; the destructor returns it, on any thread. Holds the last user's bytes,
  // aligned to 256 bytes. Move-only; not thread-safe.
  class Buffer {
   public:
    Buffer() = default;
    Buffer(Buffer&& other) noexcept { swap(other); }
    Buffer& operator=(Buffer&& other) noexcept {
      Buffer(std::move(other)).swap(*this);
      return *this;
    }
    ~Buffer();

    bool empty() const { return pool_ == nullptr; }
    std::byte* data() const { return data_; }
    std::uint64_t size_bytes() const { return size_bytes_; }  // as requested
    std::uint64_t capacity_bytes() const { return pool_ == nullptr ? 0 : kBucketBytes[bucket_]; }
    std::span<std::byte> bytes() const { return {data_, size_bytes_}; }

    // Makes room for `size_bytes`, in a larger bucket if this one's buffers are too small; keeps
    // the contents. On an error, as of acquire(), nothing has changed. REQUIRES: size_bytes >=
    // size_bytes().
    Result<> upgrade(std::uint64_t size_bytes);
    // Keeps the first `size_bytes`, in the smallest bucket with a free buffer for them.
    // REQUIRES: 0 < size_bytes <= size_bytes().
    void downgrade(std::uint64_t size_bytes);

   private:
    friend class SizeBucketPool;
    void swap(Buffer& other) noexcept;
    SizeBucketPool* pool_ = nullptr;
    std::byte* data_ = nullptr;
    std::uint64_t size_bytes_ = 0;
    std::uint32_t bucket_ = 0;
    std::uint32_t index_ = 0;
  };

  // out_of_range: 0 bytes or more than kMaxBytes; no_capacity: no bucket has a buffer for it.
  Result<Buffer> acquire(std::uint64_t size_bytes);

  std::array<BucketStatistics, kBuckets> bucket_statistics() const;
  // Counts of several threads: each is right; together they may be from slightly different moments.
  // A cache miss is a buffer from a larger bucket than its size has.
  AllocatorStatistics statistics() const;

 private:
  struct alignas(kLinePairBytes) Bucket {
    Bucket(std::byte* first, std::uint32_t buffers) : data(first), free(buffers) {}
    std::byte* const data;
    IndexFreeList free;
    std::atomic<std::uint64_t> in_use{0};
    std::atomic<std::uint64_t> hits{0};
    std::atomic<std::uint64_t> misses{0};
    std::atomic<std::uint64_t> upgrades{0};
    std::atomic<std::uint64_t> downgrades{0};
  };
  static_assert(has_pairs_of_its_own<Bucket>);

  SizeBucketPool(Region memory, const Options& options);
  Result<Buffer> take(std::uint64_t size_bytes);
  void give_back(std::uint32_t bucket, std::uint32_t index);

  const Region memory_;
  std::array<std::unique_ptr<Bucket>, kBuckets> buckets_;
  alignas(kCacheLineBytes) std::atomic<std::uint64_t> allocated_bytes_{0};
  std::atomic<std::uint64_t> peak_allocated_bytes_{0};
  std::atomic<std::uint64_t> allocations_{0};
  std::atomic<std::uint64_t> helped_out_{0};  // of those, served by a larger bucket
  std::atomic<std::uint64_t> frees_{0};
};

}  // namespace cairn
