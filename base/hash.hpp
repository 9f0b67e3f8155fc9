#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace cairn {

// XXH3, 64 bits. With a random seed the collisions of a hash table cannot be chosen by a client.
// Never an identity: keys are compared whole.
std::uint64_t hash_bytes(std::span<const std::byte> bytes, std::uint64_t seed);

}  // namespace cairn
