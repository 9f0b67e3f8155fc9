#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "base/cache_line.hpp"
#include "base/file_descriptor.hpp"
#include "base/result.hpp"

namespace cairn {

// What all mapped data of a service did. Thread-safe.
struct alignas(kCacheLineBytes) MappedCounts {
  std::atomic<std::uint64_t> mapped_files{0};
  std::atomic<std::uint64_t> files_on_heap{0};
  std::atomic<std::uint64_t> released_bytes{0};
  std::atomic<std::uint64_t> refused_advice{0};  // reading is only slower, or keeps more memory
};
static_assert(has_lines_of_its_own<MappedCounts>);

// The bytes of a file that is read from its beginning: mapped, or on the heap where the system does
// not map it. Pages that were read are given back, so that a file may be larger than memory.
// Not thread-safe.
class MappedData {
 public:
  // Pages are given back so many bytes at a time: what a reader keeps of a file, and a system call
  // for each.
  static constexpr std::uint64_t kReleaseBytes = 8ull << 20;

  struct Options {
    std::uint64_t max_heap_bytes = 256ull << 20;  // a file beyond that is mapped or refused
    bool in_order = true;                         // what is read next lies behind what was read
    bool is_mapped = true;           // false: on the heap, as if it could not be mapped
    bool stays_open = false;         // for copy(), where the system refuses it out of a mapping
    MappedCounts* counts = nullptr;  // borrowed; null: nobody counts
  };
  // All of a regular file. not_found; io_error.
  static Result<MappedData> open(const std::filesystem::path& path, const Options& options);
  // The first bytes of an open file. io_error: it is mapped neither nor read.
  static Result<MappedData> of(const FileDescriptor& file, std::uint64_t size_bytes,
                               const Options& options);

  bool is_mapped() const { return map_ != nullptr; }
  std::uint64_t size_bytes() const { return size_bytes_; }
  // To touch what was cut off of a mapped file ends the process by SIGBUS; see copy().
  std::span<const std::byte> bytes() const;
  // Copies what begins at `from_bytes`, a mapping through the kernel: where the file was cut off
  // under it (or cannot be read) the answer is false. Also where the system refuses such copies, as
  // some containers do, and the file does not stay open.
  // REQUIRES: it lies in size_bytes().
  bool copy(std::uint64_t from_bytes, std::span<std::byte> room) const;

  // What lies before `end_bytes` is not needed soon: its pages are given back, whole steps of them.
  // It can be read again.
  void done_before(std::uint64_t end_bytes);
  // It is read from its beginning once more.
  void rewind() { released_bytes_ = 0; }

 private:
  MappedData() = default;
  void advise(std::uint64_t from_bytes, std::uint64_t bytes, int advice) const;

  struct Unmap {
    std::size_t size_bytes;
    void operator()(std::byte* first) const;
  };
  std::unique_ptr<std::byte, Unmap> map_;
  std::vector<std::byte> heap_;
  FileDescriptor file_;  // empty: it does not stay open
  std::uint64_t size_bytes_ = 0;
  std::uint64_t released_bytes_ = 0;  // from the beginning
  MappedCounts* counts_ = nullptr;
};

}  // namespace cairn
