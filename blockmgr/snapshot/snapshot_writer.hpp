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

// Suffix of a file that is being written. It is not a snapshot, and the next start removes it.
inline constexpr std::string_view kPartialSuffix = ".partial";

// Writes a snapshot under another name, and renames it when every byte is on disk. If destroyed
// before that, it removes the file. Not thread-safe.
class SnapshotWriter {
 public:
  // Borrows `io`. REQUIRES: the folder exists.
  static Result<std::unique_ptr<SnapshotWriter>> begin(const SnapshotIo& io,
                                                       const SnapshotIo::Path& path,
                                                       const SnapshotHeader& header);
  ~SnapshotWriter();

  // Appends a block. Fills in the record's sizes and checksums.
  Result<> add(SnapshotRecord record, std::span<const iovec> bytes);
  // Returns the file's size.
  Result<std::uint64_t> finish();

 private:
  SnapshotWriter(const SnapshotIo& io, SnapshotIo::Path path, FileDescriptor file);
  Result<> write_header(const SnapshotHeader& header);
  Result<> put(std::span<const std::byte> bytes);
  Result<> put_stored(std::span<const std::byte> bytes);
  Result<> compress(std::span<const std::byte> bytes, bool last);
  Result<> flush();
  SnapshotIo::Path partial() const { return path_.native() + std::string(kPartialSuffix); }

  const SnapshotIo& io_;
  const SnapshotIo::Path path_;
  const FileDescriptor file_;
  std::optional<FrameCompressor> frames_;
  SnapshotBytes buffer_;  // small pieces, not written yet
  SnapshotBytes index_;
  SnapshotFooter footer_;
  std::uint64_t offset_bytes_ = 0;
  PiecewiseHash hash_;
  PiecewiseHash stored_hash_;
  bool finished_ = false;
};

}  // namespace cairn
