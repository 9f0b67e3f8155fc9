#include "server/codec/layout_body.hpp"

#include <array>

namespace cairn {
namespace {

constexpr std::array<std::string_view, 2> kLayoutWords = {"fully_contiguous", "layer_separate"};
constexpr std::array<std::string_view, 2> kBlockDimWords = {"first", "second"};

}  // namespace

LayoutWords read_layout(Fields& fields, LayoutField layout) {
  LayoutWords read;
  std::optional<std::size_t> word;
  if (layout == LayoutField::required) {
    word = fields.word("layout", kLayoutWords);
  } else {
    word = fields.optional_word("layout", kLayoutWords);
  }
  if (word) read.layout = *word == 1 ? LayoutKind::layer_separate : LayoutKind::fully_contiguous;
  if (fields.has("block_dim") && read.layout != LayoutKind::layer_separate) {
    fields.errors().add(ErrorCode::malformed,
                        fields.path_of("block_dim") + " is given; it is for layer_separate only");
  }
  const auto dim = fields.optional_word("block_dim", kBlockDimWords);
  if (dim) read.block_dim = *dim == 1 ? BlockDim::second : BlockDim::first;
  return read;
}

ordered_json block_shape_body(const LayoutConfig& shape) {
  return {{"num_layers", shape.num_layers},
          {"outer_dim", shape.outer_dim},
          {"page_size", shape.page_size},
          {"inner_dim", shape.inner_dim},
          {"dtype_width_bytes", shape.dtype_width_bytes}};
}

LayoutConfig read_block_shape(Fields& fields) {
  LayoutConfig shape;
  const json* object = fields.object("shape");
  if (object == nullptr) return shape;
  Fields members(*object, fields.path_of("shape"), fields.errors());
  shape.num_layers = members.number("num_layers", {});
  shape.outer_dim = members.number("outer_dim", {});
  shape.page_size = members.number("page_size", {});
  shape.inner_dim = members.number("inner_dim", {});
  shape.dtype_width_bytes = members.number("dtype_width_bytes", {});
  members.finish();
  return shape;
}

}  // namespace cairn
