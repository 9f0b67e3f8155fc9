#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/histogram.hpp"
#include "memory/alloc/allocation_scope.hpp"
#include "memory/alloc/size_bucket_pool.hpp"
#include "memory/alloc/slab_pool.hpp"
#include "server/http/message.hpp"

namespace cairn::http {

// Memory for the request bodies of all connections, with one limit for all clients. Thread-safe.
class BodyMemory {
 public:
  // `limit_bytes` is for bodies above SizeBucketPool::kMaxBytes; memory for smaller ones is
  // reserved at once. Returns no_capacity if the machine has too little.
  static Result<std::unique_ptr<BodyMemory>> create(std::uint64_t limit_bytes);

  std::vector<NamedAllocator> statistics();
  // Memory used per body, recorded once each: when it was complete (current), and at its maximum
  // (peak).
  struct Sizes {
    SizeHistogram::Snapshot current;
    SizeHistogram::Snapshot peak;
  };
  Sizes sizes() const { return {current_bytes_.snapshot(), peak_bytes_.snapshot()}; }
  // Memory for other data of a request, under the same limit. This object must outlive it.
  AllocationScope scope() { return AllocationScope(large_, limit_bytes_); }
  // Returns unused memory of long bodies to the system if no long body began since the last call.
  // So the memory of a burst is not kept forever, and steady traffic does not allocate it
  // repeatedly. Call from one thread only.
  void trim_idle();
  // As HttpServer::give_back_cached().
  bool give_back_cached(std::string_view allocator);

 private:
  friend class BodyBuffer;
  // Bodies that are only announced may reserve a quarter of the memory. Announcing costs a client
  // nothing, so most memory is kept for bodies that arrive.
  static constexpr std::uint64_t kAnnouncedShare = 4;

  BodyMemory(std::unique_ptr<SizeBucketPool> small, std::uint64_t limit_bytes);

  const std::unique_ptr<SizeBucketPool> small_;
  const std::uint64_t limit_bytes_;
  // Returns false if that share is used up.
  bool announce(std::uint64_t bytes);
  void arrived(std::uint64_t bytes) { announced_bytes_.fetch_sub(bytes); }

  SlabPool large_;
  std::uint64_t allocations_at_trim_ = 0;
  std::atomic<std::uint64_t> announced_bytes_{0};
  SizeHistogram current_bytes_;
  SizeHistogram peak_bytes_;
};

// A body that does not stay in the input buffer. Reserves the announced size at once while
// announcements are within their share; otherwise grows as bytes arrive. kBodyPadding readable
// bytes follow the data.
class BodyBuffer {
 public:
  // Borrows the memory, which must outlive it.
  explicit BodyBuffer(BodyMemory& memory)
      : memory_(memory), large_(memory.large_, memory.limit_bytes_) {}
  ~BodyBuffer() { clear(); }
  BodyBuffer(const BodyBuffer&) = delete;
  BodyBuffer& operator=(const BodyBuffer&) = delete;

  std::span<const std::byte> data() const { return {data_, size_}; }
  std::size_t size() const { return size_; }
  // Call on an empty buffer with the announced or the typical length. The body may be longer or
  // shorter.
  void expect(std::size_t bytes);
  // Call when the body is complete. Frees unused room; data() may move.
  void settle();
  // Returns false, and changes nothing, if memory runs out.
  [[nodiscard]] bool append(std::span<const std::byte> bytes);
  // Returns room for 1 to `max_bytes` bytes; empty if memory runs out.
  std::span<std::byte> room(std::size_t max_bytes);
  void commit(std::size_t bytes) { size_ += bytes; }
  // Drops the bytes and frees the memory.
  void clear();

 private:
  // Makes room for at least `bytes` bytes in total.
  bool reserve(std::size_t bytes);
  bool reserve_small(std::size_t bytes);
  void end_announcement();

  BodyMemory& memory_;
  SizeBucketPool::Buffer small_;
  AllocationScope large_;
  std::byte* data_ = nullptr;  // in small_ or large_
  std::size_t capacity_ = 0;   // without the padding
  std::size_t size_ = 0;
  std::size_t announced_bytes_ = 0;  // reserved in large_
  std::uint64_t peak_bytes_ = 0;
};

}  // namespace cairn::http
