#pragma once

#include <chrono>
#include <thread>

namespace cairn {

// Polls a condition for up to a minute. Use it if another thread or process sends no notification.
// Returns whether the condition became true.
template <class Condition>
[[nodiscard]] bool eventually(Condition&& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace cairn
