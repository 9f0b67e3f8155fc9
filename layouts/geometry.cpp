#include "layouts/geometry.hpp"

#include <string>

#include "base/assert.hpp"
#include "base/checked.hpp"

namespace cairn {
namespace {

// REQUIRES: validate(), which has seen that the padded sizes fit.
std::uint64_t padded(const LayoutConfig& config, std::uint64_t size_bytes) {
  return checked_align_up(size_bytes, config.alignment).value();
}

}  // namespace

std::string_view to_string(LayoutKind kind) {
  switch (kind) {
    case LayoutKind::fully_contiguous:
      return "fully_contiguous";
    case LayoutKind::layer_separate:
      return "layer_separate";
  }
  invariant_broken("LayoutKind", "a value outside the enumeration");
}

std::string_view to_string(BlockDim dim) {
  switch (dim) {
    case BlockDim::first:
      return "first";
    case BlockDim::second:
      return "second";
  }
  invariant_broken("BlockDim", "a value outside the enumeration");
}

Geometry Geometry::fully_contiguous(const LayoutConfig& config) {
  CAIRN_ASSERT(validate(config).has_value(), "an unchecked shape may overflow");
  Geometry geometry;
  geometry.config_ = config;
  geometry.kind_ = LayoutKind::fully_contiguous;
  geometry.piece_bytes_ = cairn::piece_bytes(config);
  geometry.outer_stride_bytes_ = geometry.piece_bytes_;
  geometry.layer_stride_bytes_ = config.outer_dim * geometry.piece_bytes_;
  geometry.block_stride_bytes_ = padded(config, geometry.block_bytes());
  geometry.region_bytes_ = config.num_blocks * geometry.block_stride_bytes_;
  return geometry;
}

Geometry Geometry::layer_separate(const LayoutConfig& config, BlockDim dim) {
  CAIRN_ASSERT(validate(config).has_value(), "an unchecked shape may overflow");
  Geometry geometry;
  geometry.config_ = config;
  geometry.kind_ = LayoutKind::layer_separate;
  geometry.dim_ = dim;
  geometry.piece_bytes_ = cairn::piece_bytes(config);
  geometry.layer_stride_bytes_ = 0;
  switch (dim) {
    case BlockDim::first:
      geometry.outer_stride_bytes_ = geometry.piece_bytes_;
      geometry.block_stride_bytes_ = padded(config, config.outer_dim * geometry.piece_bytes_);
      geometry.region_bytes_ = config.num_blocks * geometry.block_stride_bytes_;
      break;
    case BlockDim::second:
      geometry.block_stride_bytes_ = padded(config, geometry.piece_bytes_);
      geometry.outer_stride_bytes_ = config.num_blocks * geometry.block_stride_bytes_;
      geometry.region_bytes_ = config.outer_dim * geometry.outer_stride_bytes_;
      break;
  }
  return geometry;
}

Result<> check_slots(const LayoutConfig& config, SlotSpacing spacing) {
  const auto with_header = checked_add(block_bytes(config), spacing.header_bytes);
  const auto slot = with_header ? checked_align_up(*with_header, spacing.alignment) : std::nullopt;
  const auto file = slot ? checked_mul(*slot, config.num_blocks / spacing.files + 1) : std::nullopt;
  // A slot is left over for what a file has before its first.
  if (file && *file <= kMaxLayoutBytes - *slot) return {};
  return Error{ErrorCode::impossible_shape,
               std::to_string(config.num_blocks) + " slots of " +
                   std::to_string(block_bytes(config)) + " bytes and their headers, over " +
                   std::to_string(spacing.files) + " files, are above " +
                   std::to_string(kMaxLayoutBytes) + " bytes a file"};
}

Geometry Geometry::in_slots(const LayoutConfig& config, SlotSpacing spacing) {
  CAIRN_ASSERT(validate(config).has_value() && check_slots(config, spacing).has_value(),
               "an unchecked shape may overflow");
  Geometry geometry = fully_contiguous(config);
  geometry.before_block_bytes_ = spacing.first_bytes + spacing.header_bytes;
  geometry.files_ = spacing.files;
  geometry.block_stride_bytes_ =
      checked_align_up(spacing.header_bytes + geometry.block_bytes(), spacing.alignment).value();
  geometry.region_bytes_ = spacing.first_bytes + (config.num_blocks + spacing.files - 1) /
                                                     spacing.files * geometry.block_stride_bytes_;
  return geometry;
}

std::uint32_t Geometry::num_regions() const {
  return kind_ == LayoutKind::fully_contiguous ? files_
                                               : static_cast<std::uint32_t>(config_.num_layers);
}

PieceLocation Geometry::locate(Piece piece) const {
  CAIRN_ASSERT(piece.block < config_.num_blocks && piece.layer < config_.num_layers &&
                   piece.outer < config_.outer_dim,
               "the piece would lie in another block");
  if (kind_ == LayoutKind::fully_contiguous) {
    return {static_cast<std::uint32_t>(piece.block % files_),
            piece.block / files_ * block_stride_bytes_ + before_block_bytes_ +
                piece.layer * layer_stride_bytes_ + piece.outer * outer_stride_bytes_};
  }
  return {static_cast<std::uint32_t>(piece.layer), piece.block * block_stride_bytes_ +
                                                       piece.layer * layer_stride_bytes_ +
                                                       piece.outer * outer_stride_bytes_};
}

}  // namespace cairn
