#include "memory/cuda/cuda_address_map.hpp"

#include <algorithm>
#include <limits>
#include <mutex>

#include "base/assert.hpp"

namespace cairn {
namespace {

std::uintptr_t number(const std::byte* address) {
  return reinterpret_cast<std::uintptr_t>(address);
}

bool contains(const CudaAddressMap::Range& range, const std::byte* address) {
  return number(address) - number(range.begin) < range.size_bytes;  // wraps if it is before
}

}  // namespace

void CudaAddressMap::insert(const Range& range) {
  CAIRN_ASSERT(range.piece_bytes > 0, "a copy in pieces of nothing would never end");
  const std::unique_lock lock(mutex_);
  const auto after = std::ranges::upper_bound(ranges_, number(range.begin), {},
                                              [](const Range& r) { return number(r.begin); });
  ranges_.insert(after, range);
}

void CudaAddressMap::erase(const std::byte* begin) {
  const std::unique_lock lock(mutex_);
  std::erase_if(ranges_, [begin](const Range& range) { return range.begin == begin; });
}

CudaAddressMap::Extent CudaAddressMap::Reader::at(const std::byte* address) {
  const std::vector<Range>& ranges = map_.ranges_;
  const auto remembered = std::ranges::find_if(latest_, [&](std::size_t index) {
    return index < ranges.size() && contains(ranges[index], address);
  });
  if (remembered == latest_.end()) {
    const auto after = std::ranges::upper_bound(ranges, number(address), {},
                                                [](const Range& r) { return number(r.begin); });
    if (after == ranges.begin() || !contains(*(after - 1), address)) {
      // Pageable memory ends where the next known range begins, at the latest.
      const std::uint64_t room = after == ranges.end() ? std::numeric_limits<std::uint64_t>::max()
                                                       : number(after->begin) - number(address);
      return {.reach_bytes = room, .to_range_end_bytes = room};
    }
    latest_ = {static_cast<std::size_t>(after - ranges.begin()) - 1, latest_[0]};
  } else {
    std::iter_swap(latest_.begin(), remembered);
  }
  const Range& range = ranges[latest_[0]];
  const std::uint64_t offset = number(address) - number(range.begin);
  const std::uint64_t left = range.size_bytes - offset;
  return {.kind = range.kind,
          .device_id = range.device_id,
          .reach_bytes = std::min(left, range.piece_bytes - offset % range.piece_bytes),
          .to_range_end_bytes = left};
}

}  // namespace cairn
