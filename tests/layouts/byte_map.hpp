#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "layouts/geometry.hpp"

namespace cairn::testing_layouts {

// Finds the place of each byte of each block. It lays the bytes down one after the other and pads
// at the end of a block. It uses no strides, so that it is independent of Geometry.
class ByteMap {
 public:
  explicit ByteMap(const Geometry& geometry);

  std::uint64_t region_bytes() const { return region_bytes_; }
  std::uint32_t num_regions() const { return num_regions_; }
  // The place of a block's n-th byte in canonical order.
  PieceLocation at(std::uint64_t block, std::uint64_t n) const { return places_[block][n]; }

 private:
  void put(std::uint64_t block, std::uint64_t layer, std::uint64_t outer);
  void pad();

  LayoutConfig config_;
  std::uint64_t piece_ = 0;
  PieceLocation cursor_;
  std::uint64_t region_bytes_ = 0;
  std::uint32_t num_regions_ = 0;
  std::vector<std::vector<PieceLocation>> places_;
};

// A layout of a shape, by name.
struct Layout {
  LayoutKind kind = LayoutKind::fully_contiguous;
  BlockDim dim = BlockDim::first;
  Geometry of(const LayoutConfig& config) const {
    return kind == LayoutKind::fully_contiguous ? Geometry::fully_contiguous(config)
                                                : Geometry::layer_separate(config, dim);
  }
};
inline constexpr Layout kLayouts[] = {{LayoutKind::fully_contiguous, BlockDim::first},
                                      {LayoutKind::layer_separate, BlockDim::first},
                                      {LayoutKind::layer_separate, BlockDim::second}};

// A small shape, chosen so that padding, one layer, one block and odd sizes all come up often.
LayoutConfig random_shape(std::mt19937& random);

// Shows a shape in the message of a failed test.
std::string describe(const Geometry& geometry);

}  // namespace cairn::testing_layouts
