#include "layouts/layout_config.hpp"

#include <string>

#include "base/checked.hpp"

namespace cairn {
namespace {

// Collects all errors, so that a person can fix a shape at once, not field by field.
class Complaints {
 public:
  struct Range {
    std::uint64_t least = 0;
    std::uint64_t most = 0;
  };
  void check_range(std::string_view field, std::uint64_t value, Range range) {
    if (value >= range.least && value <= range.most) return;
    add(field, value, std::to_string(range.least) + " to " + std::to_string(range.most));
  }
  void check_power_of_two(std::string_view field, std::uint64_t value, std::uint64_t most) {
    if (is_power_of_two(value) && value <= most) return;
    add(field, value, "a power of two up to " + std::to_string(most));
  }
  bool empty() const { return text_.empty(); }
  std::string take() { return std::move(text_); }

 private:
  void add(std::string_view field, std::uint64_t value, const std::string& bound) {
    if (!text_.empty()) text_ += "; ";
    text_ += std::string(field) + " is " + std::to_string(value) + " and must be " + bound;
  }
  std::string text_;
};

// Upper bound for every layout: as if each piece were padded.
bool fits_file_offset(const LayoutConfig& config) {
  const auto piece =
      checked_product({config.page_size, config.inner_dim, config.dtype_width_bytes});
  if (!piece) return false;
  const auto padded = checked_align_up(*piece, config.alignment);
  if (!padded) return false;
  const auto total =
      checked_product({config.num_blocks, config.num_layers, config.outer_dim, *padded});
  return total && *total <= kMaxLayoutBytes;
}

std::string factor(std::string_view field, std::uint64_t value) {
  return std::string(field) + " " + std::to_string(value);
}

}  // namespace

Result<> validate(const LayoutConfig& config) {
  Complaints complaints;
  complaints.check_range("num_blocks", config.num_blocks, {1, kMaxBlocks});
  complaints.check_range("num_layers", config.num_layers, {1, kMaxLayers});
  complaints.check_range("outer_dim", config.outer_dim, {1, kMaxOuterDim});
  complaints.check_range("page_size", config.page_size, {1, kMaxPageSize});
  complaints.check_range("inner_dim", config.inner_dim, {1, kMaxInnerDim});
  complaints.check_power_of_two("dtype_width_bytes", config.dtype_width_bytes, kMaxDtypeWidthBytes);
  complaints.check_power_of_two("alignment", config.alignment, kMaxAlignment);
  if (!complaints.empty()) return Error{ErrorCode::impossible_shape, complaints.take()};
  if (config.num_layers * config.outer_dim > kMaxPieces) {
    return Error{ErrorCode::impossible_shape, factor("num_layers", config.num_layers) + " * " +
                                                  factor("outer_dim", config.outer_dim) +
                                                  " is above " + std::to_string(kMaxPieces)};
  }
  if (!fits_file_offset(config)) {
    return Error{
        ErrorCode::impossible_shape,
        factor("num_blocks", config.num_blocks) + " * " + factor("num_layers", config.num_layers) +
            " * " + factor("outer_dim", config.outer_dim) + " * (" +
            factor("page_size", config.page_size) + " * " + factor("inner_dim", config.inner_dim) +
            " * " + factor("dtype_width_bytes", config.dtype_width_bytes) + ", padded to " +
            factor("alignment", config.alignment) + ") is above " +
            std::to_string(kMaxLayoutBytes) + " bytes"};
  }
  return {};
}

std::uint64_t piece_bytes(const LayoutConfig& config) {
  return config.page_size * config.inner_dim * config.dtype_width_bytes;
}

std::uint64_t block_bytes(const LayoutConfig& config) {
  return config.num_layers * config.outer_dim * piece_bytes(config);
}

bool same_shape(const LayoutConfig& a, const LayoutConfig& b) {
  return a.num_layers == b.num_layers && a.outer_dim == b.outer_dim && a.page_size == b.page_size &&
         a.inner_dim == b.inner_dim && a.dtype_width_bytes == b.dtype_width_bytes;
}

}  // namespace cairn
