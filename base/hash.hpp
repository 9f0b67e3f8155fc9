#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

struct XXH3_state_s;  // of xxhash.h

namespace cairn {

// XXH3, 64 bits. With a random seed the collisions of a hash table cannot be chosen by a client.
// Never an identity: keys are compared whole.
std::uint64_t hash_bytes(std::span<const std::byte> bytes, std::uint64_t seed);

// The same with seed 0, of bytes that come in pieces. Move-only.
class PiecewiseHash {
 public:
  PiecewiseHash();
  void add(std::span<const std::byte> bytes);
  std::uint64_t value() const;  // of all that was added
  void reset();

 private:
  struct Free {
    void operator()(void* state) const;
  };
  std::unique_ptr<void, Free> state_;
};

}  // namespace cairn
