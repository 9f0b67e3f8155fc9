#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "memory/memory_copy.hpp"

namespace cairn {

// Pieces of one size at even distances on both sides: `rows` of them, one pitch apart.
struct StridedCopy {
  std::byte* destination = nullptr;
  const std::byte* source = nullptr;
  std::uint64_t row_bytes = 0;
  std::uint64_t destination_pitch_bytes = 0;  // at least row_bytes, like the source's
  std::uint64_t source_pitch_bytes = 0;
  std::uint64_t rows = 1;  // with one row the pitches are unused

  MemoryCopy row(std::uint64_t index) const {
    return {destination + index * destination_pitch_bytes, source + index * source_pitch_bytes,
            row_bytes};
  }
  // From the first byte to the last.
  std::uint64_t destination_extent_bytes() const {
    return (rows - 1) * destination_pitch_bytes + row_bytes;
  }
  std::uint64_t source_extent_bytes() const { return (rows - 1) * source_pitch_bytes + row_bytes; }

  friend bool operator==(const StridedCopy&, const StridedCopy&) = default;
};

// CUDA accepts no wider distance (cudaDeviceProp::memPitch has had this value since the first
// devices).
inline constexpr std::uint64_t kMaxPitchBytes = 0x7FFF'FFFF;

// Every piece in exactly one run, in few runs. The order of the pieces does not matter: they are
// checked by source and by destination, because either side can be the one with even distances. n
// log n; reorders `copies`. REQUIRES: destinations do not overlap.
std::vector<StridedCopy> find_strided_runs(std::vector<MemoryCopy>& copies);

}  // namespace cairn
