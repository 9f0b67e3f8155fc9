#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "blockmgr/index/config.hpp"
#include "blockmgr/index/types.hpp"

// The file format of snapshots, version 3. Numbers are little-endian and packed. Offsets count from
// the file's start.
//
//   header   magic "CAIRNSNP", u32 version, u32 bytes of the header, u32 flags (1: zstd), u32 0,
//            i64 made at (Unix ms), the cache's configuration (one byte holds both policies:
//            offload in the lower half, eviction in the upper), u64 XXH3 of all before it
//   data     the blocks' bytes in canonical order, without gaps: each plain, or as one zstd frame
//   index    a block record per block, in the order of the data: see block_record.hpp. Its
//            place: i64 last use (Unix ms), u64 bytes in the file, u64 XXH3 of those, u8 tiers (a
//            bit each), 7 zeros
//   footer   64 bytes: magic "CAIRNEND", u64 blocks, u64 offset of the index, u64 bytes of it,
//            u64 XXH3 of it, u64 XXH3 of the header, u64 bytes of the file, u64 XXH3 of the
//            footer before
//
// A checksum covers every byte of the file, and there are no gaps between the parts. Parents come
// first, and the most recently used prefix first. So the first n blocks are whole prefixes, for
// every n. A reader refuses all other versions.
namespace cairn {

inline constexpr std::uint32_t kSnapshotVersion = 3;  // 2: Cairn 0.2
inline constexpr std::size_t kSnapshotFooterBytes = 64;
// Bytes of the header up to and including its own length.
inline constexpr std::size_t kSnapshotPreludeBytes = 16;
// A name, three paths and some numbers: a longer header is invalid.
inline constexpr std::uint32_t kMaxSnapshotHeaderBytes = 64 * 1024;

struct SnapshotHeader {
  CacheConfig config;  // of the cache that was saved
  bool compressed = false;
  std::int64_t created_unix_ms = 0;
};

struct SnapshotRecord {
  BlockKey key;
  std::optional<BlockKey> parent = {};
  std::string metadata = {};
  std::uint32_t epoch = 1;
  std::uint8_t priority = 50;  // of its highest copy
  std::uint8_t tiers = 0;      // that it was in: the bit 1 << index_of(tier) for each; at least one
  std::int64_t last_use_unix_ms = 0;
  std::int64_t expires_at_unix_ms = 0;  // 0: never
  std::uint64_t stored_bytes = 0;       // in the file
  std::uint64_t stored_checksum = 0;
  std::uint64_t block_bytes = 0;
  std::uint64_t checksum = 0;  // of the block's own bytes
};

struct SnapshotFooter {
  std::uint64_t blocks = 0;
  std::uint64_t index_offset = 0;
  std::uint64_t index_bytes = 0;
  std::uint64_t index_checksum = 0;
  std::uint64_t header_checksum = 0;
  std::uint64_t file_bytes = 0;
};

using SnapshotBytes = std::vector<std::byte>;

SnapshotBytes encode(const SnapshotHeader& header);
void append(SnapshotBytes& index, const SnapshotRecord& record);
SnapshotBytes encode(const SnapshotFooter& footer);

Error broken_snapshot(std::string why);
// Return broken_snapshot with the reason, unless the bytes are one whole part.
Result<std::uint32_t> decode_header_length(std::span<const std::byte> prelude);
Result<SnapshotHeader> decode_header(std::span<const std::byte> bytes);
Result<SnapshotFooter> decode_footer(std::span<const std::byte> bytes);

// Reads an index record by record. Borrows the bytes.
class SnapshotIndexCursor {
 public:
  explicit SnapshotIndexCursor(std::span<const std::byte> index) : left_(index) {}
  bool at_end() const { return left_.empty(); }
  Result<SnapshotRecord> next();

 private:
  std::span<const std::byte> left_;
};

}  // namespace cairn
