#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/histogram.hpp"
#include "memory/alloc/allocation_scope.hpp"
#include "memory/alloc/size_bucket_pool.hpp"
#include "memory/alloc/slab_pool.hpp"
#include "server/http/message.hpp"

namespace cairn::http {

// What the bodies of all connections are kept in while they arrive and are worked on: bounded,
// however many clients send. Thread-safe.
class BodyMemory {
 public:
  // `limit_bytes` is for bodies above SizeBucketPool::kMaxBytes; the smaller ones' memory is set
  // aside at once. no_capacity where the machine has not so much.
  static Result<std::unique_ptr<BodyMemory>> create(std::uint64_t limit_bytes);

  std::vector<NamedAllocator> statistics() const;
  // What bodies had of this memory, each once: when all of it had arrived, and at the most.
  struct Sizes {
    SizeHistogram::Snapshot current;
    SizeHistogram::Snapshot peak;
  };
  Sizes sizes() const { return {current_bytes_.snapshot(), peak_bytes_.snapshot()}; }
  // Memory for what a request keeps beside its body, under the same bound. This must outlive it.
  AllocationScope scope() { return AllocationScope(large_, limit_bytes_); }
  // Gives the system what no long body holds, if none began since the last call: what a burst of
  // them took does not stay for ever, and steady traffic does not fetch it again and again. For one
  // thread.
  void trim_idle();

 private:
  friend class BodyBuffer;
  // Of the memory, what may be set aside for bodies that have only been announced: announcing costs
  // a client nothing, so most of it is for those that arrive.
  static constexpr std::uint64_t kAnnouncedShare = 4;

  BodyMemory(std::unique_ptr<SizeBucketPool> small, std::uint64_t limit_bytes);

  const std::unique_ptr<SizeBucketPool> small_;
  const std::uint64_t limit_bytes_;
  // False where that is used up.
  bool announce(std::uint64_t bytes);
  void arrived(std::uint64_t bytes) { announced_bytes_.fetch_sub(bytes); }

  SlabPool large_;
  std::uint64_t allocations_at_trim_ = 0;
  std::atomic<std::uint64_t> announced_bytes_{0};
  SizeHistogram current_bytes_;
  SizeHistogram peak_bytes_;
};

// A body that does not stay in the input buffer. What was announced is set aside at once, as long
// as announcements have not used up their share of the memory; beyond it grows with what arrives.
// Followed by kBodyPadding readable bytes.
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
  // Of an empty one: this is how long the body will be, as its sender says, or how long such bodies
  // mostly are. It may turn out longer, or shorter.
  void expect(std::size_t bytes);
  // All has arrived: what the body does not fill is given back, and data() may have moved.
  void settle();
  // False where there is no memory for it; nothing has changed then.
  [[nodiscard]] bool append(std::span<const std::byte> bytes);
  // Room for at least one and at most `max_bytes` bytes; empty where there is no memory.
  std::span<std::byte> room(std::size_t max_bytes);
  void commit(std::size_t bytes) { size_ += bytes; }
  // Forgets the bytes and gives the memory back.
  void clear();

 private:
  // Makes room for `bytes` in all, or more.
  bool reserve(std::size_t bytes);
  bool reserve_small(std::size_t bytes);
  void end_announcement();

  BodyMemory& memory_;
  SizeBucketPool::Buffer small_;
  AllocationScope large_;
  std::byte* data_ = nullptr;  // in one of the two
  std::size_t capacity_ = 0;   // without the padding
  std::size_t size_ = 0;
  std::size_t announced_bytes_ = 0;  // set aside in large_
  std::uint64_t peak_bytes_ = 0;
};

}  // namespace cairn::http
