#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "blockmgr/index/config.hpp"
#include "blockmgr/index/types.hpp"
#include "transport/record/block_record.hpp"

namespace cairn {

// The header of a block: before its bytes in a shared store, after them in a response to another
// server. It is the block's record, padded with zeros; its place is the fingerprint of the shape.
inline constexpr std::size_t kRemoteHeaderBytes = max_record_bytes(sizeof(std::uint64_t));
static_assert(kRemoteHeaderBytes == 176, "docs/api.md promises it");
using RemoteHeader = std::array<std::byte, kRemoteHeaderBytes>;

// What the header says about the value.
struct RemoteBlock {
  BlockKey key;
  std::optional<BlockKey> parent = {};
  std::uint32_t epoch = 1;
  std::uint64_t size_bytes = 0;
  std::uint64_t checksum = 0;  // XXH3 of the bytes
};
// Differs for another shape, for another KV group, and for another version of the record. It is
// part of the names in the store, so servers never read values of another kind.
std::uint64_t fingerprint_of(const CacheConfig& config, KvGroupNumber group);
RemoteHeader write_remote_header(std::uint64_t fingerprint, const RemoteBlock& block);

// Why a value is not the requested block. A closed set: it is a metric's label.
enum class WrongValue : std::uint8_t {
  header,    // damaged, or not of this format
  shape,     // blocks of another shape
  key,       // another block
  length,    // too short or too long
  checksum,  // the bytes were changed
};
inline constexpr std::size_t kNumWrongValues = 5;
std::string_view to_string(WrongValue why);

struct RemoteHeaderRead {
  std::optional<WrongValue> wrong = {};  // does not cover the bytes' checksum
  RemoteBlock block = {};
};
// What a block's header must say.
struct RemoteExpectation {
  std::uint64_t fingerprint = 0;
  KeyView key;
  std::uint64_t size_bytes = 0;
};
RemoteHeaderRead read_remote_header(const RemoteHeader& header, const RemoteExpectation& expected);

}  // namespace cairn
