#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/file_descriptor.hpp"
#include "base/hash.hpp"
#include "base/result.hpp"
#include "blockmgr/snapshot/snapshot_format.hpp"
#include "blockmgr/snapshot/snapshot_io.hpp"
#include "blockmgr/snapshot/snapshot_zstd.hpp"

namespace cairn {

// Reads a snapshot's file. Uncompressed data is copied from a mapping, whose pages are returned
// once used. Compressed data is read in pieces. A file that is truncated or changed meanwhile
// causes an error, not a crash. Wrong checksums return broken_snapshot. Not thread-safe.
class SnapshotReader {
 public:
  // Checks the header and the footer. Borrows `io`. Error: unknown_snapshot if there is no file.
  static Result<std::unique_ptr<SnapshotReader>> open(const SnapshotIo& io,
                                                      const SnapshotIo::Path& path);

  const SnapshotHeader& header() const { return header_; }
  std::uint64_t blocks() const { return footer_.blocks; }
  std::uint64_t file_bytes() const { return footer_.file_bytes; }

  // Reads the index, and checks that it matches the rest of the file.
  Result<> load_index();

  struct Block {
    SnapshotRecord record;
    std::uint64_t offset_bytes = 0;
  };
  // Iterates over the blocks from the first. REQUIRES: load_index().
  void rewind();
  std::optional<Block> next();

  // Checks all of a block's bytes against its checksums.
  Result<> check(const Block& block);
  // The same, into room of a block's size. After success the room holds the block.
  Result<> read(const Block& block, std::span<const iovec> room);
  // Data before the block is not needed again (until rewind()).
  void done_before(const Block& block);

 private:
  class Rooms;
  SnapshotReader(const SnapshotIo& io, FileDescriptor file) : io_(io), file_(std::move(file)) {}
  Result<> read_ends();
  Result<> stream(const Block& block, Rooms rooms);
  Result<> stream_stored(const Block& block, Rooms& rooms);
  Result<> stream_frame(const Block& block, Rooms& rooms);
  Result<> copy(SnapshotIo::Piece piece);

  const SnapshotIo& io_;
  const FileDescriptor file_;
  SnapshotHeader header_;
  std::uint64_t header_bytes_ = 0;
  SnapshotFooter footer_;
  SnapshotBytes index_;
  std::optional<SnapshotIndexCursor> cursor_;
  std::uint64_t next_offset_ = 0;
  std::optional<MappedData> map_;
  std::optional<FrameDecompressor> frames_;
  SnapshotBytes input_;    // of a frame
  SnapshotBytes scratch_;  // for bytes that are only checked
  PiecewiseHash hash_;
  PiecewiseHash stored_hash_;
};

}  // namespace cairn
