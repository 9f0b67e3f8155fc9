#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/file_descriptor.hpp"
#include "base/mapped_data.hpp"
#include "base/result.hpp"

namespace cairn {

// All file system calls of snapshots. A call moves all its bytes or fails (io_error; no_capacity
// for a full disk). Tests can make each call fail. Thread-safe.
class SnapshotIo {
 public:
  // Runs before each call and gets its name. A result other than 0 is the errno with which the call
  // fails; a write has then moved half of its bytes.
  using Fault = std::function<int(std::string_view call)>;
  // Borrows the counts; null: no counting.
  explicit SnapshotIo(Fault fault = {}, MappedCounts* mapped = nullptr)
      : fault_(std::move(fault)), mapped_(mapped) {}

  using Path = std::filesystem::path;
  // Makes the missing folders. Each is on disk before the call returns.
  Result<> make_folders(const Path& below, const Path& folder) const;
  // Fails if the path exists.
  Result<FileDescriptor> create(const Path& path) const;
  // Opens a regular file for reading; nullopt if there is none. Error: broken_snapshot for another
  // kind of file.
  Result<std::optional<FileDescriptor>> open(const Path& path) const;
  Result<std::uint64_t> size_bytes(const FileDescriptor& file) const;
  Result<> append(const FileDescriptor& file, std::span<const std::byte> bytes) const;
  struct Piece {
    std::uint64_t offset_bytes = 0;
    std::span<std::byte> room;
  };
  Result<> read(const FileDescriptor& file, Piece piece) const;
  // nullopt if the system cannot map the file: a snapshot may be larger than memory.
  std::optional<MappedData> map(const FileDescriptor& file, std::uint64_t size_bytes) const;
  // See MappedData::copy().
  bool copy_mapped(const MappedData& mapped, Piece piece) const;
  Result<> sync(const FileDescriptor& file) const;
  Result<> rename(const Path& from, const Path& to) const;
  Result<> sync_folder(const Path& folder) const;
  Result<bool> remove(const Path& path) const;  // false if there was none
  Result<std::uint64_t> free_bytes(const Path& folder) const;
  // The names in a folder, sorted; empty if there is no such folder.
  Result<std::vector<std::string>> names(const Path& folder) const;

 private:
  int fails(std::string_view call) const { return fault_ ? fault_(call) : 0; }
  const Fault fault_;
  MappedCounts* const mapped_;
};

}  // namespace cairn
