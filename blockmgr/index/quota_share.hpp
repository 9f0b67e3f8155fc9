#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/result.hpp"

namespace cairn {

// A limit and a count of its use. Thread-safe.
class QuotaCount {
 public:
  explicit QuotaCount(std::uint64_t limit) : limit_(limit) {}

  void set_limit(std::uint64_t limit) { limit_ = limit; }
  std::uint64_t limit() const { return limit_; }
  std::uint64_t used() const { return used_; }
  bool fits(std::uint64_t more) const { return more <= limit_ && used_ <= limit_ - more; }

  void add(std::uint64_t more) { used_ += more; }
  void remove(std::uint64_t less) { used_ -= less; }
  // Adds `more` if it fits. Returns false, unchanged, if not.
  bool take(std::uint64_t more) {
    std::uint64_t used = used_;
    do {
      const std::uint64_t limit = limit_;
      if (more > limit || used > limit - more) return false;
    } while (!used_.compare_exchange_weak(used, used + more));
    return true;
  }

 private:
  std::atomic<std::uint64_t> limit_;
  std::atomic<std::uint64_t> used_{0};
};

// A share of a quota, returned by the destructor or earlier. Move-only. A null quota has no limit.
template <class Quota>
class QuotaShare {
 public:
  QuotaShare() = default;
  // Returns the quota's refusal() if `count` does not fit.
  static Result<QuotaShare> take(std::shared_ptr<Quota> quota, std::uint64_t count) {
    QuotaShare share;
    if (quota == nullptr) return share;
    if (!quota->take(count)) return quota->refusal(count);
    share.quota_ = std::move(quota);
    share.count_ = count;
    return share;
  }
  QuotaShare(QuotaShare&& other) noexcept
      : quota_(std::move(other.quota_)), count_(std::exchange(other.count_, 0)) {}
  QuotaShare& operator=(QuotaShare&& other) noexcept {
    std::swap(quota_, other.quota_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~QuotaShare() { give_back_all(); }

  // REQUIRES: the share has at least `count`.
  void give_back(std::uint64_t count) {
    if (quota_ == nullptr) return;
    quota_->remove(count);
    count_ -= count;
  }
  void give_back_all() { give_back(count_); }
  const std::shared_ptr<Quota>& quota() const { return quota_; }

 private:
  std::shared_ptr<Quota> quota_;
  std::uint64_t count_ = 0;
};

}  // namespace cairn
