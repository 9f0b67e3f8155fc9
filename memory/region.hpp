#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <utility>

#include "base/result.hpp"
#include "memory/storage_kind.hpp"

namespace cairn {

// A run of bytes inside a region, borrowed: valid as long as its region. Every offset was checked
// against the region when the view was made.
class RegionView {
 public:
  RegionView() = default;

  StorageKind kind() const { return kind_; }
  std::uint64_t size_bytes() const { return size_bytes_; }
  int device_id() const { return device_id_; }  // -1 if the memory belongs to no device
  // The first byte; null for disk. The CPU may dereference it in host memory, and in unified memory
  // that no device is using.
  std::byte* data() const { return data_; }
  // The file and the first byte's offset in it; -1 unless kind() is disk.
  int fd() const { return fd_; }
  std::uint64_t file_offset_bytes() const { return file_offset_bytes_; }

  // A part of this view; impossible, with the sizes, if it is not inside.
  struct Part {
    std::uint64_t offset_bytes = 0;
    std::uint64_t size_bytes = 0;

    friend bool operator==(const Part&, const Part&) = default;
  };
  Result<RegionView> view(Part part) const;

 private:
  friend class Region;
  StorageKind kind_ = StorageKind::system;
  int device_id_ = -1;
  int fd_ = -1;
  std::byte* data_ = nullptr;
  std::uint64_t file_offset_bytes_ = 0;
  std::uint64_t size_bytes_ = 0;
};

// Where new shared memory lies: in a new file, or in the file of other memory, which becomes longer
// if needed. A process that maps that file then has both in one piece.
struct SharedFilePlace {
  int fd = -1;                     // Region::shared_fd() of that memory; -1: a new file
  std::uint64_t offset_bytes = 0;  // a multiple of 4 KiB
};

// Memory or a file, owned: freed when the Region is destroyed. Move-only; a moved-from Region is
// empty. Holders of views share the bytes; the object itself is not thread-safe.
class Region {
 public:
  Region() = default;
  Region(Region&& other) noexcept
      : whole_(std::exchange(other.whole_, {})),
        shared_fd_(std::exchange(other.shared_fd_, -1)),
        backing_(std::move(other.backing_)) {}
  Region& operator=(Region&& other) noexcept {
    whole_ = std::exchange(other.whole_, {});
    shared_fd_ = std::exchange(other.shared_fd_, -1);
    backing_ = std::move(other.backing_);
    return *this;
  }

  // Page-aligned zeroed host memory (anonymous mapping, allocated at first touch). no_capacity if
  // the machine refuses it, out_of_range for 0 bytes.
  static Result<Region> system(std::uint64_t size_bytes);
  // A file of exactly `size_bytes`, created if missing. Its blocks are reserved if the file system
  // supports it, so that a full disk is found here and not at a write; those of a sparse one are
  // not. Existing bytes are kept. A file of that length is accepted on a full disk too, with any
  // holes it has. The file remains when the Region is destroyed, and is locked until then.
  // no_capacity: the disk is full; state_conflict: another Region, of this process or another, has
  // the file; out_of_range: 0 bytes; otherwise io_error.
  enum class FileRoom : std::uint8_t { reserved, sparse };
  static Result<Region> disk_file(const std::filesystem::path& path, std::uint64_t size_bytes,
                                  FileRoom room = FileRoom::reserved);
  // Makes the file of such a region longer (reserved, as above) or shorter; `whole` is a view of
  // it. Returns a view of all of it. After an error the file has its former length.
  static Result<RegionView> resize_disk_file(const RegionView& whole, std::uint64_t size_bytes,
                                             FileRoom room = FileRoom::reserved);
  // For runtimes: memory that they allocated and how to free it. `release` runs once, when the
  // Region is destroyed.
  struct Parts {
    StorageKind kind = StorageKind::system;
    int device_id = -1;
    int fd = -1;  // disk: the file; host-visible or device memory of the host runtime: the memfd
                  // behind it, or -1
    std::byte* data = nullptr;
    std::uint64_t size_bytes = 0;
  };
  static Region adopt(Parts parts, std::unique_ptr<struct RegionBacking> backing);

  // The shared-memory file that another process can map, if the memory has one; else -1.
  int shared_fd() const { return shared_fd_; }
  // How another process maps all of it; the caller owns the descriptor, if there is one. impossible
  // for private memory of this process, or a file.
  Result<struct ExportedMemory> share() const;

  // Returns the pages of these parts, and no others, to the system; parts returned before and not
  // named are allocated again. They read as zeros. Returns false if memory of this kind does not
  // support it. no_capacity if memory to allocate again is not available. REQUIRES: multiples of 4
  // KiB from the region's first byte, not in use.
  Result<bool> let_go(std::span<const RegionView::Part> parts);

  bool empty() const { return backing_ == nullptr; }
  StorageKind kind() const { return whole_.kind(); }
  std::uint64_t size_bytes() const { return whole_.size_bytes(); }
  int device_id() const { return whole_.device_id(); }
  std::byte* data() const { return whole_.data(); }
  // All of it as a view; and a bounds-checked part.
  RegionView view() const { return whole_; }
  Result<RegionView> view(RegionView::Part part) const { return whole_.view(part); }

 private:
  RegionView whole_;
  int shared_fd_ = -1;
  std::unique_ptr<struct RegionBacking> backing_;
};

// Frees memory in its destructor.
struct RegionBacking {
  virtual ~RegionBacking() = default;
  // As Region::share(), for the region that it backs: by the memfd, if there is one.
  virtual Result<struct ExportedMemory> share(const Region& region) const;
  // As Region::let_go().
  virtual Result<bool> let_go(std::span<const RegionView::Part>) { return false; }
};

}  // namespace cairn
