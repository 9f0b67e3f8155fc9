#pragma once

#include <cstdint>
#include <optional>

#include "layouts/geometry.hpp"
#include "server/codec/fields.hpp"

// How the blocks of a tier, of shared memory or of an engine lie in memory.
namespace cairn {

// The fields `layout` and `block_dim`.
struct LayoutWords {
  std::optional<LayoutKind> layout = {};
  std::optional<BlockDim> block_dim = {};
};
enum class LayoutField : std::uint8_t { required, optional };
// Adds an error for a `block_dim` of another layout than layer_separate.
LayoutWords read_layout(Fields& fields, LayoutField layout);

// The shape of a block, an object of five numbers, in the field `shape`.
ordered_json block_shape_body(const LayoutConfig& shape);
LayoutConfig read_block_shape(Fields& fields);

}  // namespace cairn
