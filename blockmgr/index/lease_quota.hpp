#pragma once

#include <atomic>
#include <cstdint>

namespace cairn {

// How many blocks somebody's leases may hold in all caches, and how many they do: a block as often
// as it is held. Asked before blocks are pinned, so that requests which are under way side by side
// may pass the limit by what each of them pins. Thread-safe.
class LeaseQuota {
 public:
  explicit LeaseQuota(std::uint64_t limit) : limit_(limit) {}

  void set_limit(std::uint64_t limit) { limit_ = limit; }
  std::uint64_t limit() const { return limit_; }
  std::uint64_t used() const { return used_; }
  bool fits(std::uint64_t more) const { return used_ + more <= limit_; }

  void add(std::uint64_t blocks) { used_ += blocks; }
  void remove(std::uint64_t blocks) { used_ -= blocks; }

 private:
  std::atomic<std::uint64_t> limit_;
  std::atomic<std::uint64_t> used_{0};
};

}  // namespace cairn
