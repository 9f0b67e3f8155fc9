#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

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
  // Gives the system what no long body holds, if none began since the last call: what a burst of
  // them took does not stay for ever, and steady traffic does not fetch it again and again. For one
  // thread.
  void trim_idle();

 private:
  friend class BodyBuffer;
  BodyMemory(std::unique_ptr<SizeBucketPool> small, std::uint64_t limit_bytes);

  const std::unique_ptr<SizeBucketPool> small_;
  const std::uint64_t limit_bytes_;
  SlabPool large_;
  std::uint64_t allocations_at_trim_ = 0;
};

// A body that does not stay in the input buffer. It grows with what arrives, not with what was
// announced, so that an announcement costs nothing. Followed by kBodyPadding readable bytes.
class BodyBuffer {
 public:
  // Borrows the memory, which must outlive it.
  explicit BodyBuffer(BodyMemory& memory)
      : memory_(memory), large_(memory.large_, memory.limit_bytes_) {}

  std::span<const std::byte> data() const { return {data_, size_}; }
  std::size_t size() const { return size_; }
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

  BodyMemory& memory_;
  SizeBucketPool::Buffer small_;
  AllocationScope large_;
  std::byte* data_ = nullptr;  // in one of the two
  std::size_t capacity_ = 0;   // without the padding
  std::size_t size_ = 0;
};

}  // namespace cairn::http
