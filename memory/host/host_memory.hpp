#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/cache_line.hpp"
#include "memory/region.hpp"

namespace cairn {

// A limit for one kind of memory. Thread-safe.
class alignas(kCacheLineBytes) MemoryBudget {
 public:
  // `owner` names the memory in errors.
  MemoryBudget(std::string owner, std::uint64_t total_bytes)
      : owner_(std::move(owner)), total_bytes_(total_bytes) {}

  std::uint64_t total_bytes() const { return total_bytes_; }
  Result<> reserve(std::uint64_t size_bytes);  // no_capacity, with the remaining bytes
  void give_back(std::uint64_t size_bytes);

 private:
  const std::string owner_;
  const std::uint64_t total_bytes_;
  alignas(kCacheLineBytes) std::atomic<std::uint64_t> used_bytes_{0};
};
static_assert(alignof(MemoryBudget) == kCacheLineBytes);
static_assert(sizeof(MemoryBudget) % kCacheLineBytes == 0);

struct SharedMemoryRequest {
  StorageKind kind = StorageKind::pinned;
  int device_id = -1;
  std::uint64_t size_bytes = 0;
  int numa_node = -1;  // the node for its pages; -1: any
  SharedFilePlace place = {};
};

// Zeroed memory in a memfd, so that another process can map it as well. Pages are allocated at
// first touch. It counts against `budget` until it is freed.
Result<Region> map_shared_memory(const SharedMemoryRequest& request,
                                 std::shared_ptr<MemoryBudget> budget);

// The node of device `device_id`, assigned in turn; -1 if the machine has one node.
int numa_node_of_device(int device_id);

std::uint64_t machine_memory_bytes();

}  // namespace cairn
