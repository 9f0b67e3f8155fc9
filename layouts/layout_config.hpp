#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.hpp"

namespace cairn {

// Slot numbers have 32 bits.
inline constexpr std::uint64_t kMaxBlocks = 0xFFFF'FFFF;
// A layer-separate layout has one region per layer; the deepest models have about 130.
inline constexpr std::uint64_t kMaxLayers = 1024;
inline constexpr std::uint64_t kMaxOuterDim = 1024;  // keys and values, or the KV heads of a model
// A write tracks each (layer, outer) piece of its block, in 2 bytes: 256 KiB for 128 layers of
// 1,024 heads.
inline constexpr std::uint64_t kMaxPieces = std::uint64_t{1} << 17;
// Blocks are the unit of sharing, so engines use 16 to 1024 tokens; 64 Ki is far above.
inline constexpr std::uint64_t kMaxPageSize = 65536;
// heads * head size is a few thousand; 16 Mi leaves room for any model.
inline constexpr std::uint64_t kMaxInnerDim = std::uint64_t{1} << 24;
inline constexpr std::uint64_t kMaxDtypeWidthBytes = 16;  // complex double, the widest type
// The large page of x86-64 and of GPUs: nothing needs a coarser alignment.
inline constexpr std::uint64_t kMaxAlignment = std::uint64_t{2} << 20;
// The largest file offset.
inline constexpr std::uint64_t kMaxLayoutBytes = (std::uint64_t{1} << 63) - 1;

// The shape of one block's KV data, and the number of blocks.
struct LayoutConfig {
  std::uint64_t num_blocks = 0;
  std::uint64_t num_layers = 0;
  std::uint64_t outer_dim = 0;  // 1 (keys and values together, MLA), 2 (keys, then values) or heads
  std::uint64_t page_size = 0;  // tokens per block
  std::uint64_t inner_dim = 0;  // values per token, layer and outer index: heads * head size
  std::uint64_t dtype_width_bytes = 0;  // a power of two
  std::uint64_t alignment = 1;          // a power of two; block strides are padded to a multiple
  // Head shards: equal ranges of the outer dimension that clients read and write apart. 0: blocks
  // are whole. Changes no byte's place, so validate() and same_shape() ignore it.
  std::uint64_t shards = 0;

  friend bool operator==(const LayoutConfig&, const LayoutConfig&) = default;
};

// Returns impossible_shape with each invalid field, its value and its limit; or with the sizes
// whose padded product exceeds kMaxLayoutBytes.
Result<> validate(const LayoutConfig& config);

// Size of one (layer, outer) piece of a block, without padding:
// page_size*inner_dim*dtype_width_bytes. REQUIRES: validate(config).
std::uint64_t piece_bytes(const LayoutConfig& config);
// num_layers*outer_dim pieces: the length of a block in canonical order.
std::uint64_t block_bytes(const LayoutConfig& config);

// True if blocks of both are equal byte for byte in canonical order. Ignores num_blocks and
// alignment.
bool same_shape(const LayoutConfig& a, const LayoutConfig& b);

}  // namespace cairn
