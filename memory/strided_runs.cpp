#include "memory/strided_runs.hpp"

#include <algorithm>
#include <functional>
#include <tuple>

namespace cairn {
namespace {

// The distance from one row to the next, or 0 if a run cannot have it.
template <class Byte>
std::uint64_t pitch(Byte* from, Byte* to, std::uint64_t row_bytes) {
  // Modulo 2^64: a step back is larger than any pitch.
  const std::uint64_t distance =
      reinterpret_cast<std::uintptr_t>(to) - reinterpret_cast<std::uintptr_t>(from);
  return distance >= row_bytes && distance <= kMaxPitchBytes ? distance : 0;
}

bool extend(StridedCopy& run, const MemoryCopy& next) {
  if (next.size_bytes != run.row_bytes) return false;
  const MemoryCopy last = run.row(run.rows - 1);
  const std::uint64_t destination = pitch(last.destination, next.destination, run.row_bytes);
  const std::uint64_t source = pitch(last.source, next.source, run.row_bytes);
  if (destination == 0 || source == 0) return false;
  if (run.rows == 1) {
    run.destination_pitch_bytes = destination;
    run.source_pitch_bytes = source;
  } else if (destination != run.destination_pitch_bytes || source != run.source_pitch_bytes) {
    return false;
  }
  ++run.rows;
  return true;
}

std::vector<StridedCopy> runs_in_order(std::span<const MemoryCopy> copies) {
  std::vector<StridedCopy> runs;
  for (const MemoryCopy& copy : copies) {
    if (!runs.empty() && extend(runs.back(), copy)) continue;
    runs.push_back(
        {.destination = copy.destination, .source = copy.source, .row_bytes = copy.size_bytes});
  }
  return runs;
}

}  // namespace

std::vector<StridedCopy> find_strided_runs(std::vector<MemoryCopy>& copies) {
  std::ranges::sort(copies, std::less<>{}, [](const MemoryCopy& copy) {
    return std::tuple(copy.size_bytes, copy.source, copy.destination);
  });
  std::vector<StridedCopy> by_source = runs_in_order(copies);
  std::ranges::sort(copies, std::less<>{}, [](const MemoryCopy& copy) {
    return std::tuple(copy.size_bytes, copy.destination);
  });
  std::vector<StridedCopy> by_destination = runs_in_order(copies);
  return by_source.size() <= by_destination.size() ? by_source : by_destination;
}

}  // namespace cairn
