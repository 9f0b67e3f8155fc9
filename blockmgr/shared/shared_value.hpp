#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "blockmgr/index/types.hpp"
#include "layouts/geometry.hpp"

namespace cairn {

// What stands before a block's bytes in a shared store, little-endian:
//   8 bytes "CAIRNSV1"; u64 fingerprint of the shape; u64 bytes of the block; u64 XXH3 of them;
//   u32 epoch; u8 bytes of the key; u8 of its parent (0: not known); u16 zero;
//   64 bytes key; 64 bytes parent; u64 XXH3 of all before it.
inline constexpr std::size_t kSharedHeaderBytes = 176;
using SharedHeader = std::array<std::byte, kSharedHeaderBytes>;

// What a value is said to be. Another shape is another fingerprint.
struct SharedBlock {
  BlockKey key;
  std::optional<BlockKey> parent = {};
  std::uint32_t epoch = 1;
  std::uint64_t size_bytes = 0;
  std::uint64_t checksum = 0;  // XXH3 of the bytes
};
std::uint64_t fingerprint_of(const LayoutConfig& shape);
SharedHeader write_shared_header(std::uint64_t fingerprint, const SharedBlock& block);

// Why a value is none of the block that was asked for. A closed set: it is a metric's label.
enum class WrongValue : std::uint8_t {
  header,    // not one of this format, or damaged
  shape,     // blocks of another shape
  key,       // another block's
  length,    // cut, or longer
  checksum,  // the bytes are not what they were
};
inline constexpr std::size_t kNumWrongValues = 5;
std::string_view to_string(WrongValue why);

struct SharedHeaderRead {
  std::optional<WrongValue> wrong = {};  // but for the bytes' checksum
  SharedBlock block = {};
};
// What is expected of a block's header: its key and size, and its shape.
struct SharedExpectation {
  std::uint64_t fingerprint = 0;
  KeyView key;
  std::uint64_t size_bytes = 0;
};
SharedHeaderRead read_shared_header(const SharedHeader& header, const SharedExpectation& expected);

}  // namespace cairn
