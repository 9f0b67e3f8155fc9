#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

namespace cairn {

// A value that seldom changes and that any thread may read without a lock. References stay valid:
// each different value is kept. One thread at a time may set it.
template <class T>
class Versions {
 public:
  explicit Versions(T first) { set(std::move(first)); }
  const T& operator*() const { return *current_.load(std::memory_order_acquire); }
  const T* operator->() const { return &**this; }
  void set(T next) {
    if (const T* same = find(next)) return current_.store(same, std::memory_order_release);
    kept_.push_back(std::make_unique<const T>(std::move(next)));
    current_.store(kept_.back().get(), std::memory_order_release);
  }

  std::size_t kept() const { return kept_.size(); }

 private:
  const T* find(const T& value) const {
    const auto same = std::ranges::find_if(kept_, [&](const auto& one) { return *one == value; });
    return same == kept_.end() ? nullptr : same->get();
  }

  std::vector<std::unique_ptr<const T>> kept_;
  std::atomic<const T*> current_{nullptr};
};

}  // namespace cairn
