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

// Reads a snapshot's file. Uncompressed data is copied out of a mapping of it, whose pages are
// given back once used, and compressed data is read in pieces; a file that is cut off or changed
// under the reader is an error, not the end of the process. Whatever does not fit its checksum is
// broken_snapshot. Not thread-safe.
class SnapshotReader {
 public:
  // Checks the header and the footer. Borrows `io`. unknown_snapshot where there is no file.
  static Result<std::unique_ptr<SnapshotReader>> open(const SnapshotIo& io,
                                                      const SnapshotIo::Path& path);

  const SnapshotHeader& header() const { return header_; }
  std::uint64_t blocks() const { return footer_.blocks; }
  std::uint64_t file_bytes() const { return footer_.file_bytes; }

  // Reads the index and checks that it and the file's parts fit each other.
  Result<> load_index();

  struct Block {
    SnapshotRecord record;
    std::uint64_t offset_bytes = 0;
  };
  // The blocks in their order, from the first. REQUIRES: load_index().
  void rewind();
  std::optional<Block> next();

  // All of a block's bytes against its checksums.
  Result<> check(const Block& block);
  // The same, into room of a block's size: what is there after success is the block.
  Result<> read(const Block& block, std::span<const iovec> room);
  // What lies before the block is not needed again (until the next rewind).
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
