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

// A run of bytes inside a region, borrowed: valid as long as the region it was cut from. Every
// offset was checked against the region when the view was made.
class RegionView {
 public:
  RegionView() = default;

  StorageKind kind() const { return kind_; }
  std::uint64_t size_bytes() const { return size_bytes_; }
  int device_id() const { return device_id_; }  // -1 where the memory belongs to no device
  // The first byte; null for disk. The CPU may dereference it in host memory, and in unified memory
  // that no device is using.
  std::byte* data() const { return data_; }
  // The file and the first byte's offset in it; -1 unless kind() is disk.
  int fd() const { return fd_; }
  std::uint64_t file_offset_bytes() const { return file_offset_bytes_; }

  // A part of this view, or impossible with the sizes where it does not lie inside.
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

// Memory or a file, owned: given back when the Region is destroyed. Move-only; a moved-from Region
// is empty. The bytes are shared state of whoever holds views; the object itself is not
// thread-safe.
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

  // Page-aligned zeroed host memory (anonymous mapping, touched on first use). no_capacity where
  // the machine refuses it, out_of_range for 0 bytes.
  static Result<Region> system(std::uint64_t size_bytes);
  // A file of exactly `size_bytes`, made if missing, its blocks reserved where the file system can,
  // so that a full disk is found here and not at a write; existing bytes are kept. A file that is
  // as long already is taken on a full disk too, with the holes that it may have. The file stays
  // when the Region goes, and is locked until then. no_capacity: the disk is full; state_conflict:
  // another Region, of this process or another, has the file; out_of_range: 0 bytes; io_error else.
  static Result<Region> disk_file(const std::filesystem::path& path, std::uint64_t size_bytes);
  // Makes the file of such a region, which `whole` is a view of, longer (reserved, as above) or
  // shorter: a view of all of it. After an error it is as long as it was.
  static Result<RegionView> resize_disk_file(const RegionView& whole, std::uint64_t size_bytes);
  // For runtimes: memory they got and how it goes back. `release` runs once, when the Region goes.
  struct Parts {
    StorageKind kind = StorageKind::system;
    int device_id = -1;
    int fd = -1;  // disk: the file; host-visible or device memory of the host runtime: the memfd
                  // behind it, or -1
    std::byte* data = nullptr;
    std::uint64_t size_bytes = 0;
  };
  static Region adopt(Parts parts, std::unique_ptr<struct RegionBacking> backing);

  // The shared-memory file that another process can map, of memory that has one; else -1.
  int shared_fd() const { return shared_fd_; }
  // How another process maps all of it; a descriptor, where there is one, is the caller's own.
  // impossible for memory that is this process's alone, or a file.
  Result<struct ExportedMemory> share() const;

  // Lets the system have the pages of these parts and no others: what was let go before and is not
  // named is taken again. It reads as zeros. False where memory of this kind stays as it is.
  // no_capacity where what is taken again is not to be had. REQUIRES: multiples of 4 KiB from the
  // region's first byte, in no one's use.
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

// Gives memory back in its destructor.
struct RegionBacking {
  virtual ~RegionBacking() = default;
  // As Region::share(), of the region that it backs: by the memfd, where there is one.
  virtual Result<struct ExportedMemory> share(const Region& region) const;
  // As Region::let_go().
  virtual Result<bool> let_go(std::span<const RegionView::Part>) { return false; }
};

}  // namespace cairn
