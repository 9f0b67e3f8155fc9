#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "layouts/layout_config.hpp"

namespace cairn {

enum class LayoutKind : std::uint8_t { fully_contiguous, layer_separate };
// Order of a layer-separate region's dimensions: [block][outer]… or [outer][block]….
enum class BlockDim : std::uint8_t { first, second };

std::string_view to_string(LayoutKind kind);
std::string_view to_string(BlockDim dim);

struct PieceLocation {
  std::uint32_t region = 0;
  std::uint64_t offset_bytes = 0;

  friend auto operator<=>(const PieceLocation&, const PieceLocation&) = default;
};

// How blocks are stored in files: each in a slot behind a header; runs of slots are spread over the
// files round-robin.
struct SlotSpacing {
  std::uint64_t first_bytes = 0;  // per file, before its first slot
  std::uint64_t header_bytes = 0;
  // A power of two. first_bytes is a multiple of it, and so is the start of every slot.
  std::uint64_t alignment = 1;
  std::uint32_t files = 1;
  std::uint32_t run = 1;  // slots of a run; a block may cover several of one run
};

// Maps (block, layer, outer) to byte offsets. A pure value; thread-safe to read.
//   fully_contiguous  1 region            [block][layer][outer][page][inner]
//   layer_separate    1 region per layer  first:  [block][outer][page][inner]
//                                         second: [outer][block][page][inner]
//   in_slots          1 region per file     [run / files][block of the run]
//                                           [header, then layer][outer][page][inner]
class Geometry {
 public:
  // REQUIRES: validate(config).
  static Geometry fully_contiguous(const LayoutConfig& config);
  static Geometry layer_separate(const LayoutConfig& config, BlockDim dim);

  // Its kind() is fully_contiguous. REQUIRES: validate(config), check_slots(config, spacing).
  static Geometry in_slots(const LayoutConfig& config, SlotSpacing spacing);

  // Several geometries as one: blocks and regions are concatenated. Strides and region_bytes() are
  // those of the first part. REQUIRES: not in_slots; equal except for num_blocks; no part is joined
  // itself.
  static Geometry joined(std::span<const Geometry> parts);

  // A range of layers of every block, as if there were no others: use the regions of these layers,
  // or regions that begin at the first of them. REQUIRES: not in_slots; 1 to all layers.
  Geometry with_layers(std::uint64_t count) const;

  // A range of the outer dimension of every block, as if there were no others. REQUIRES:
  // the range lies in the outer dimension, and is not empty.
  struct Outers {
    std::uint64_t first = 0;
    std::uint64_t count = 0;
  };
  Geometry with_outers(Outers which) const;

  // Blocks of another shape in the same slots: each begins where the slot's block began. A larger
  // block covers the slots after it, too: the caller leaves them unused. REQUIRES: fully_contiguous
  // or in_slots; validate(shape). Ignores the number of blocks and the alignment of `shape`.
  Geometry with_shape(const LayoutConfig& shape) const;

  const LayoutConfig& config() const { return config_; }
  LayoutKind kind() const { return kind_; }
  BlockDim block_dim() const { return dim_; }  // for layer_separate

  std::uint32_t num_regions() const;
  std::uint64_t region_bytes() const { return region_bytes_; }  // the same for all regions
  // Distances between neighbours. layer_stride_bytes is 0 for layer_separate: each layer has its
  // own region.
  std::uint64_t block_stride_bytes() const { return block_stride_bytes_; }
  std::uint64_t layer_stride_bytes() const { return layer_stride_bytes_; }
  std::uint64_t outer_stride_bytes() const { return outer_stride_bytes_; }
  std::uint64_t piece_bytes() const { return piece_bytes_; }
  std::uint32_t slot_run() const { return run_; }  // SlotSpacing::run
  std::uint64_t block_bytes() const {
    return piece_bytes_ * config_.num_layers * config_.outer_dim;
  }

  struct Piece {
    std::uint64_t block = 0;
    std::uint64_t layer = 0;
    std::uint64_t outer = 0;
  };
  // REQUIRES: every index is below its dimension (asserted).
  PieceLocation locate(Piece piece) const;
  // True if the block is in other regions than the one before it.
  bool begins_part(std::uint64_t block) const;
  // True if the pieces of one block and layer are contiguous.
  bool outers_touch() const;
  // True if a block is contiguous.
  bool layers_touch() const;

 private:
  LayoutConfig config_;
  LayoutKind kind_ = LayoutKind::fully_contiguous;
  BlockDim dim_ = BlockDim::first;
  std::uint64_t piece_bytes_ = 0;
  std::uint64_t block_stride_bytes_ = 0;
  std::uint64_t layer_stride_bytes_ = 0;
  std::uint64_t outer_stride_bytes_ = 0;
  std::uint64_t region_bytes_ = 0;
  std::uint64_t first_outer_ = 0;  // with_outers() only: those before the range
  // in_slots only: bytes before the first block, the number of files, and SlotSpacing::run.
  std::uint64_t before_block_bytes_ = 0;
  std::uint32_t files_ = 1;
  std::uint32_t run_ = 1;
  // joined() only: the parts after the first.
  struct Part {
    std::uint64_t first_block = 0;
    std::uint64_t outer_stride_bytes = 0;
  };
  std::vector<Part> more_;
  PieceLocation locate_in_parts(Piece piece) const;
};

// Returns impossible_shape if a file with its slots would be too large.
Result<> check_slots(const LayoutConfig& config, SlotSpacing spacing);

}  // namespace cairn
