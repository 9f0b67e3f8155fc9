#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.hpp"
#include "memory/region.hpp"

namespace cairn {

// The largest region: the range of a signed file offset and a pointer difference.
inline constexpr std::uint64_t kMaxRegionBytes = (std::uint64_t{1} << 63) - 1;

// out_of_range unless 1 to kMaxRegionBytes; `what` names the requested memory.
Result<> check_region_size(std::string_view what, std::uint64_t size_bytes);

// Mapped memory, unmapped by the destructor.
class Mapping final : public RegionBacking {
 public:
  Mapping(void* data, std::uint64_t size_bytes) : data_(data), size_bytes_(size_bytes) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() override;
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* const data_;
  const std::uint64_t size_bytes_;
};

}  // namespace cairn
