#pragma once

#include <chrono>
#include <thread>

namespace cairn {

// Asks again and again until it is so, or until nobody would wait any longer: for what another
// thread or process does and tells nobody of. True where it is so.
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
