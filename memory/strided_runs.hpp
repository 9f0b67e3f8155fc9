#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "memory/memory_copy.hpp"

namespace cairn {

// Pieces of one size at even distances on both sides: `rows` of them, each a pitch after the one
// before it.
struct StridedCopy {
  std::byte* destination = nullptr;
  const std::byte* source = nullptr;
  std::uint64_t row_bytes = 0;
  std::uint64_t destination_pitch_bytes = 0;  // at least row_bytes, as is the source's
  std::uint64_t source_pitch_bytes = 0;
  std::uint64_t rows = 1;  // of one the pitches mean nothing

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

// CUDA takes no wider distance (cudaDeviceProp::memPitch has been this since the first devices).
inline constexpr std::uint64_t kMaxPitchBytes = 0x7FFF'FFFF;

// Every piece in exactly one run, in few runs: whatever order the pieces come in, they are looked
// at by source and by destination, since either side may be the one whose neighbours are evenly
// apart. n log n; reorders `copies`. REQUIRES: destinations do not overlap.
std::vector<StridedCopy> find_strided_runs(std::vector<MemoryCopy>& copies);

}  // namespace cairn
