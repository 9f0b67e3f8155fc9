#include "base/hash.hpp"

// xxHash with unprefixed names; cmake/dependencies.cmake chooses the header.
#include CAIRN_XXHASH_HEADER

#include <new>

namespace cairn {

std::uint64_t hash_bytes(std::span<const std::byte> bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

namespace {

// Allocated by the library, which knows its alignment.
XXH3_state_t* xxh(void* state) { return static_cast<XXH3_state_t*>(state); }

}  // namespace

void PiecewiseHash::Free::operator()(void* state) const { XXH3_freeState(xxh(state)); }

PiecewiseHash::PiecewiseHash() : state_(XXH3_createState()) {
  if (!state_) throw std::bad_alloc();
  reset();
}

void PiecewiseHash::add(std::span<const std::byte> bytes) {
  XXH3_64bits_update(xxh(state_.get()), bytes.data(), bytes.size());
}

std::uint64_t PiecewiseHash::value() const { return XXH3_64bits_digest(xxh(state_.get())); }

void PiecewiseHash::reset() { XXH3_64bits_reset(xxh(state_.get())); }

}  // namespace cairn
