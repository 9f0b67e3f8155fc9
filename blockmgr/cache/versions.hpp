#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

namespace cairn {

// A value that seldom changes and is read by anybody at any time, without a lock: a reference to it
// stays good, since what it was before is kept. Set by one thread at a time.
template <class T>
class Versions {
 public:
  explicit Versions(T first) { set(std::move(first)); }
  const T& operator*() const { return *current_.load(std::memory_order_acquire); }
  const T* operator->() const { return &**this; }
  void set(T next) {
    kept_.push_back(std::make_unique<const T>(std::move(next)));
    current_.store(kept_.back().get(), std::memory_order_release);
  }

 private:
  std::vector<std::unique_ptr<const T>> kept_;
  std::atomic<const T*> current_{nullptr};
};

}  // namespace cairn
