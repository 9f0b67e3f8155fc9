#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "layouts/layout_config.hpp"

namespace cairn {

enum class LayoutKind : std::uint8_t { fully_contiguous, layer_separate };
// Which dimension of a layer-separate region comes first: [block][outer]… or [outer][block]….
enum class BlockDim : std::uint8_t { first, second };

std::string_view to_string(LayoutKind kind);
std::string_view to_string(BlockDim dim);

// Where a piece lies: which region, and the offset in it.
struct PieceLocation {
  std::uint32_t region = 0;
  std::uint64_t offset_bytes = 0;

  friend auto operator<=>(const PieceLocation&, const PieceLocation&) = default;
};

// How blocks lie in files: each in a slot of its own behind a header, slots dealt out over the
// files in turn.
struct SlotSpacing {
  std::uint64_t first_bytes = 0;  // of a file, before its first slot
  std::uint64_t header_bytes = 0;
  std::uint64_t alignment =
      1;  // first_bytes is a multiple of it, and slots start at multiples of it; a power of two
  std::uint32_t files = 1;
};

// Pure arithmetic: (block, layer, outer) to bytes for one of the two layouts. A value; thread-safe
// to read.
//   fully_contiguous  1 region           [block][layer][outer][page][inner]
//   layer_separate    a region a layer   first: [block][outer][page][inner], second:
//   [outer][block][page][inner]
//   in_slots          a region a file    [block / files][header, then layer][outer][page][inner]
class Geometry {
 public:
  // REQUIRES: validate(config).
  static Geometry fully_contiguous(const LayoutConfig& config);
  static Geometry layer_separate(const LayoutConfig& config, BlockDim dim);

  // Told as fully_contiguous. REQUIRES: validate(config), check_slots(config, spacing).
  static Geometry in_slots(const LayoutConfig& config, SlotSpacing spacing);

  // Several of one kind as one: their blocks and their regions one after the other, each where it
  // was. Strides and region_bytes are told of the first. REQUIRES: not in_slots; all but num_blocks
  // alike; each is of one part.
  static Geometry joined(std::span<const Geometry> parts);

  // A run of layers of every block, as if there were no others: regions are those of these layers,
  // or begin at the first of them. REQUIRES: not in_slots; 1 to all layers.
  Geometry with_layers(std::uint64_t count) const;

  const LayoutConfig& config() const { return config_; }
  LayoutKind kind() const { return kind_; }
  BlockDim block_dim() const { return dim_; }  // of layer_separate

  std::uint32_t num_regions() const;
  std::uint64_t region_bytes() const { return region_bytes_; }  // all regions are of one size
  // Distances between neighbours. The layer's is 0 for layer_separate: layers lie in regions of
  // their own.
  std::uint64_t block_stride_bytes() const { return block_stride_bytes_; }
  std::uint64_t layer_stride_bytes() const { return layer_stride_bytes_; }
  std::uint64_t outer_stride_bytes() const { return outer_stride_bytes_; }
  std::uint64_t piece_bytes() const { return piece_bytes_; }
  std::uint64_t block_bytes() const {
    return piece_bytes_ * config_.num_layers * config_.outer_dim;
  }

  struct Piece {
    std::uint64_t block = 0;
    std::uint64_t layer = 0;
    std::uint64_t outer = 0;
  };
  // REQUIRES: every index below its dimension (asserted).
  PieceLocation locate(Piece piece) const;
  // True where the block lies in other regions than the one before it.
  bool begins_part(std::uint64_t block) const;
  // True where the pieces of one block and layer follow each other without a gap.
  bool outers_touch() const;

 private:
  LayoutConfig config_;
  LayoutKind kind_ = LayoutKind::fully_contiguous;
  BlockDim dim_ = BlockDim::first;
  std::uint64_t piece_bytes_ = 0;
  std::uint64_t block_stride_bytes_ = 0;
  std::uint64_t layer_stride_bytes_ = 0;
  std::uint64_t outer_stride_bytes_ = 0;
  std::uint64_t region_bytes_ = 0;
  // Of in_slots; a block otherwise starts where its stride does, in the one region.
  std::uint64_t before_block_bytes_ = 0;
  std::uint32_t files_ = 1;
  // Of joined: the parts after the first.
  struct Part {
    std::uint64_t first_block = 0;
    std::uint64_t outer_stride_bytes = 0;
  };
  std::vector<Part> more_;
  PieceLocation locate_in_parts(Piece piece) const;
};

// impossible_shape where the slots of one file would not fit in a file.
Result<> check_slots(const LayoutConfig& config, SlotSpacing spacing);

}  // namespace cairn
