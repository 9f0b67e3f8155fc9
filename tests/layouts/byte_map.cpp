#include "tests/layouts/byte_map.hpp"

#include <sstream>

namespace cairn::testing_layouts {

ByteMap::ByteMap(const Geometry& geometry)
    : config_(geometry.config()),
      piece_(config_.page_size * config_.inner_dim * config_.dtype_width_bytes) {
  places_.assign(config_.num_blocks,
                 std::vector<PieceLocation>(config_.num_layers * config_.outer_dim * piece_));
  if (geometry.kind() == LayoutKind::fully_contiguous) {
    num_regions_ = 1;
    for (std::uint64_t b = 0; b < config_.num_blocks; ++b) {
      for (std::uint64_t l = 0; l < config_.num_layers; ++l) {
        for (std::uint64_t o = 0; o < config_.outer_dim; ++o) put(b, l, o);
      }
      pad();
    }
    region_bytes_ = cursor_.offset_bytes;
    return;
  }
  num_regions_ = static_cast<std::uint32_t>(config_.num_layers);
  for (std::uint32_t l = 0; l < num_regions_; ++l) {
    cursor_ = {l, 0};
    if (geometry.block_dim() == BlockDim::first) {
      for (std::uint64_t b = 0; b < config_.num_blocks; ++b) {
        for (std::uint64_t o = 0; o < config_.outer_dim; ++o) put(b, l, o);
        pad();
      }
    } else {
      for (std::uint64_t o = 0; o < config_.outer_dim; ++o) {
        for (std::uint64_t b = 0; b < config_.num_blocks; ++b) {
          put(b, l, o);
          pad();
        }
      }
    }
    region_bytes_ = cursor_.offset_bytes;
  }
}

void ByteMap::put(std::uint64_t block, std::uint64_t layer, std::uint64_t outer) {
  const std::uint64_t first = (layer * config_.outer_dim + outer) * piece_;
  for (std::uint64_t i = 0; i < piece_; ++i) {
    places_[block][first + i] = cursor_;
    ++cursor_.offset_bytes;
  }
}

void ByteMap::pad() {
  while (cursor_.offset_bytes % config_.alignment != 0) ++cursor_.offset_bytes;
}

LayoutConfig random_shape(std::mt19937& random) {
  const auto up_to = [&random](std::uint64_t most) {
    return std::uniform_int_distribution<std::uint64_t>(1, most)(random);
  };
  const auto power_up_to = [&random](unsigned most) {
    return std::uint64_t{1} << std::uniform_int_distribution<unsigned>(0, most)(random);
  };
  return {.num_blocks = up_to(8),
          .num_layers = up_to(4),
          .outer_dim = up_to(2),
          .page_size = up_to(4),
          .inner_dim = up_to(5),
          .dtype_width_bytes = power_up_to(3),
          .alignment = power_up_to(6)};
}

std::string describe(const Geometry& geometry) {
  const LayoutConfig& c = geometry.config();
  std::ostringstream text;
  text << to_string(geometry.kind()) << " (block dimension " << to_string(geometry.block_dim())
       << ") of " << c.num_blocks << " blocks, " << c.num_layers << " layers, outer " << c.outer_dim
       << ", page " << c.page_size << ", inner " << c.inner_dim << ", width " << c.dtype_width_bytes
       << ", alignment " << c.alignment;
  return text.str();
}

}  // namespace cairn::testing_layouts
