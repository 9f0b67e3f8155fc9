#pragma once

#include <cstdint>

namespace cairn::sim {

// splitmix64 (Steele, Lea and Flood, 2014): the same numbers on every machine, which the standard
// library's distributions are not.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    state_ += 0x9E3779B97F4A7C15u;
    return mixed(state_);
  }
  // 0 to bound - 1. REQUIRES: bound is not 0.
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }
  // True once in `times` calls on average.
  bool once_in(std::uint64_t times) { return below(times) == 0; }

  static std::uint64_t mixed(std::uint64_t value) {
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
    return value ^ (value >> 31);
  }

 private:
  std::uint64_t state_;
};

}  // namespace cairn::sim
