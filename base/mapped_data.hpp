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

// Statistics of all mapped data of a service. Thread-safe.
struct alignas(kCacheLineBytes) MappedCounts {
  std::atomic<std::uint64_t> mapped_files{0};
  std::atomic<std::uint64_t> files_on_heap{0};
  std::atomic<std::uint64_t> released_bytes{0};
  std::atomic<std::uint64_t> refused_advice{0};  // harmless: slower reads or more memory in use
};
static_assert(has_lines_of_its_own<MappedCounts>);

// The content of a file, read from its beginning: mapped, or on the heap if it cannot be mapped.
// Releases pages after use, so that a file may be larger than memory. Not thread-safe.
class MappedData {
 public:
  // Pages are released in steps of this size: the memory a reader holds per file, and one system
  // call per step.
  static constexpr std::uint64_t kReleaseBytes = 8ull << 20;

  struct Options {
    std::uint64_t max_heap_bytes = 256ull << 20;  // larger files are mapped or refused
    bool in_order = true;                         // the file is read front to back
    bool is_mapped = true;                        // false: read onto the heap
    bool stays_open = false;         // for copy(), if the system forbids copying from a mapping
    MappedCounts* counts = nullptr;  // borrowed; may be null
  };
  // Opens a whole regular file. Errors: not_found; io_error.
  static Result<MappedData> open(const std::filesystem::path& path, const Options& options);
  // The first `size_bytes` of an open file. io_error if it can be neither mapped nor read.
  static Result<MappedData> of(const FileDescriptor& file, std::uint64_t size_bytes,
                               const Options& options);

  bool is_mapped() const { return map_ != nullptr; }
  std::uint64_t size_bytes() const { return size_bytes_; }
  // Reading a truncated part of a mapped file raises SIGBUS; copy() does not.
  std::span<const std::byte> bytes() const;
  // Copies from `from_bytes` on. Mapped data is copied by the kernel, so that a truncated or
  // unreadable file returns false. Also returns false if the system forbids such copies (some
  // containers do) and the file is not kept open. REQUIRES: the range is within size_bytes().
  bool copy(std::uint64_t from_bytes, std::span<std::byte> room) const;

  // Releases the pages before `end_bytes`, in steps of kReleaseBytes. They may be read again.
  void done_before(std::uint64_t end_bytes);
  // Call before reading from the beginning again.
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
  FileDescriptor file_;  // empty unless stays_open
  std::uint64_t size_bytes_ = 0;
  std::uint64_t released_bytes_ = 0;  // from the beginning
  MappedCounts* counts_ = nullptr;
};

}  // namespace cairn
