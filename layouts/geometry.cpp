#include "layouts/geometry.hpp"

#include <algorithm>
#include <iterator>
#include <string>

#include "base/assert.hpp"
#include "base/checked.hpp"

namespace cairn {
namespace {

// REQUIRES: validate(), which checks that padded sizes fit.
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

namespace {

// The most slots that one of the files has.
std::uint64_t slots_of_a_file(const LayoutConfig& config, SlotSpacing spacing) {
  const std::uint64_t runs = (config.num_blocks + spacing.run - 1) / spacing.run;
  return (runs + spacing.files - 1) / spacing.files * spacing.run;
}

}  // namespace

Result<> check_slots(const LayoutConfig& config, SlotSpacing spacing) {
  const auto with_header = checked_add(block_bytes(config), spacing.header_bytes);
  const auto slot = with_header ? checked_align_up(*with_header, spacing.alignment) : std::nullopt;
  const auto file = slot ? checked_mul(*slot, slots_of_a_file(config, spacing)) : std::nullopt;
  // Reserves one slot for the bytes before a file's first slot.
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
  geometry.run_ = spacing.run;
  geometry.block_stride_bytes_ =
      checked_align_up(spacing.header_bytes + geometry.block_bytes(), spacing.alignment).value();
  geometry.region_bytes_ =
      spacing.first_bytes + slots_of_a_file(config, spacing) * geometry.block_stride_bytes_;
  return geometry;
}

Geometry Geometry::joined(std::span<const Geometry> parts) {
  Geometry geometry = parts.front();
  for (const Geometry& part : parts.subspan(1)) {
    CAIRN_ASSERT(part.kind_ == geometry.kind_ && part.dim_ == geometry.dim_ &&
                     same_shape(part.config_, geometry.config_) &&
                     part.block_stride_bytes_ == geometry.block_stride_bytes_ &&
                     geometry.before_block_bytes_ == 0 && part.more_.empty(),
                 "blocks of one part would be looked for as another's");
    geometry.more_.push_back({geometry.config_.num_blocks, part.outer_stride_bytes_});
    geometry.config_.num_blocks += part.config_.num_blocks;
  }
  return geometry;
}

Geometry Geometry::with_layers(std::uint64_t count) const {
  CAIRN_ASSERT(before_block_bytes_ == 0 && count >= 1 && count <= config_.num_layers,
               "the bytes of other layers would be taken for these");
  Geometry geometry = *this;
  geometry.config_.num_layers = count;
  return geometry;
}

Geometry Geometry::with_outers(Outers which) const {
  CAIRN_ASSERT(which.count >= 1 && which.first + which.count <= config_.outer_dim,
               "the bytes of other parts of a block would be taken for these");
  Geometry geometry = *this;
  geometry.config_.outer_dim = which.count;
  geometry.config_.shards = 0;
  geometry.first_outer_ += which.first;
  return geometry;
}

Geometry Geometry::with_shape(const LayoutConfig& shape) const {
  CAIRN_ASSERT(kind_ == LayoutKind::fully_contiguous, "a block would lie in several regions");
  Geometry geometry = *this;
  geometry.config_ = shape;
  geometry.config_.num_blocks = config_.num_blocks;
  geometry.config_.alignment = config_.alignment;
  geometry.piece_bytes_ = cairn::piece_bytes(shape);
  geometry.outer_stride_bytes_ = geometry.piece_bytes_;
  geometry.layer_stride_bytes_ = shape.outer_dim * geometry.piece_bytes_;
  for (Part& part : geometry.more_) part.outer_stride_bytes = geometry.piece_bytes_;
  return geometry;
}

bool Geometry::begins_part(std::uint64_t block) const {
  return std::ranges::any_of(more_, [block](const Part& p) { return p.first_block == block; });
}

bool Geometry::outers_touch() const {
  if (config_.outer_dim == 1) return true;
  return outer_stride_bytes_ == piece_bytes_ && std::ranges::all_of(more_, [this](const Part& p) {
           return p.outer_stride_bytes == piece_bytes_;
         });
}

bool Geometry::layers_touch() const {
  if (!outers_touch()) return false;
  if (config_.num_layers == 1) return true;
  return kind_ == LayoutKind::fully_contiguous &&
         layer_stride_bytes_ == config_.outer_dim * piece_bytes_;
}

std::uint32_t Geometry::num_regions() const {
  const auto of_a_part = kind_ == LayoutKind::fully_contiguous
                             ? files_
                             : static_cast<std::uint32_t>(config_.num_layers);
  return of_a_part * static_cast<std::uint32_t>(more_.size() + 1);
}

PieceLocation Geometry::locate(Piece piece) const {
  CAIRN_ASSERT(piece.block < config_.num_blocks && piece.layer < config_.num_layers &&
                   piece.outer < config_.outer_dim,
               "the piece would lie in another block");
  piece.outer += first_outer_;
  if (!more_.empty()) return locate_in_parts(piece);
  if (kind_ == LayoutKind::fully_contiguous) {
    std::uint64_t file = 0;
    std::uint64_t slot = piece.block;  // of its file
    if (files_ > 1) {
      const std::uint64_t run = piece.block / run_;
      file = run % files_;
      slot = run / files_ * run_ + piece.block % run_;
    }
    return {static_cast<std::uint32_t>(file), slot * block_stride_bytes_ + before_block_bytes_ +
                                                  piece.layer * layer_stride_bytes_ +
                                                  piece.outer * outer_stride_bytes_};
  }
  return {static_cast<std::uint32_t>(piece.layer), piece.block * block_stride_bytes_ +
                                                       piece.layer * layer_stride_bytes_ +
                                                       piece.outer * outer_stride_bytes_};
}

PieceLocation Geometry::locate_in_parts(Piece piece) const {
  const auto after = std::ranges::upper_bound(more_, piece.block, {}, &Part::first_block);
  const auto part = static_cast<std::uint64_t>(after - more_.begin());
  std::uint64_t outer_stride_bytes = outer_stride_bytes_;
  if (part > 0) {
    piece.block -= std::prev(after)->first_block;
    outer_stride_bytes = std::prev(after)->outer_stride_bytes;
  }
  const bool contiguous = kind_ == LayoutKind::fully_contiguous;
  const std::uint64_t region = contiguous ? part : part * config_.num_layers + piece.layer;
  return {static_cast<std::uint32_t>(region), piece.block * block_stride_bytes_ +
                                                  piece.layer * layer_stride_bytes_ +
                                                  piece.outer * outer_stride_bytes};
}

}  // namespace cairn
