#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

struct XXH3_state_s;  // from xxhash.h

namespace cairn {

// XXH3, 64 bits. With a random seed, clients cannot choose colliding keys for a hash table. Never
// use it as identity: compare whole keys.
std::uint64_t hash_bytes(std::span<const std::byte> bytes, std::uint64_t seed);

// XXH3 with seed 0 over data that comes in pieces. Move-only.
class PiecewiseHash {
 public:
  PiecewiseHash();
  void add(std::span<const std::byte> bytes);
  std::uint64_t value() const;  // of all data added
  void reset();

 private:
  struct Free {
    void operator()(void* state) const;
  };
  std::unique_ptr<void, Free> state_;
};

}  // namespace cairn
