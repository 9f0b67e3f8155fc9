#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "blockmgr/index/types.hpp"
#include "layouts/geometry.hpp"
#include "transport/record/block_record.hpp"

namespace cairn {

// What stands before a block's bytes in a shared store, and behind them in an answer to another
// server: the block's record, with the fingerprint of its shape as its place, and zeros.
inline constexpr std::size_t kSharedHeaderBytes = max_record_bytes(sizeof(std::uint64_t));
static_assert(kSharedHeaderBytes == 176, "docs/api.md promises it");
using SharedHeader = std::array<std::byte, kSharedHeaderBytes>;

// What a value is said to be.
struct SharedBlock {
  BlockKey key;
  std::optional<BlockKey> parent = {};
  std::uint32_t epoch = 1;
  std::uint64_t size_bytes = 0;
  std::uint64_t checksum = 0;  // XXH3 of the bytes
};
// Another shape has another fingerprint, and so has another version of the record. It is part of
// the names in the store, so no server reads values of another version.
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
