#pragma once

#include <memory>
#include <utility>

#include "blockmgr/cache/cache.hpp"

namespace cairn {

// A lease that the server itself holds for one request or operation. The destructor releases it.
// Move-only.
class HeldLease {
 public:
  HeldLease() = default;
  HeldLease(std::shared_ptr<Cache> cache, const LeaseId& id) : cache_(std::move(cache)), id_(id) {}
  HeldLease(HeldLease&& other) noexcept = default;
  HeldLease& operator=(HeldLease&& other) noexcept {
    if (this != &other) {
      release();
      cache_ = std::move(other.cache_);
      id_ = other.id_;
    }
    return *this;
  }
  ~HeldLease() { release(); }

  explicit operator bool() const { return cache_ != nullptr; }
  const LeaseId& id() const { return id_; }  // REQUIRES: it holds one
  void release() {
    if (const auto cache = std::exchange(cache_, nullptr)) {
      // Not an error: the lease may have expired, or its cache may be gone.
      static_cast<void>(cache->release(id_));
    }
  }
  // Does not release the lease: something else ends it.
  void keep() { cache_.reset(); }

 private:
  std::shared_ptr<Cache> cache_;  // null: holds no lease
  LeaseId id_;
};

}  // namespace cairn
