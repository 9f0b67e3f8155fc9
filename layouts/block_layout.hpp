#pragma once

#include <memory>
#include <span>
#include <vector>

#include "layouts/copy_plan.hpp"
#include "layouts/geometry.hpp"
#include "memory/region.hpp"

namespace cairn {

// Blocks in memory or on disk: a geometry and the regions that hold it. Made by LayoutBuilder.
// Move-only. Reading the object is thread-safe; the bytes belong to the block's current owner.
class BlockLayout {
 public:
  BlockLayout(BlockLayout&&) noexcept = default;
  BlockLayout& operator=(BlockLayout&&) noexcept = default;

  // Several layouts as one: see Geometry::joined(). Borrows their memory, which must outlive the
  // result.
  static BlockLayout joined(std::span<const BlockLayout* const> parts);

  // A range of layers of every block: see Geometry::with_layers(). Borrows the memory.
  struct Layers {
    std::uint64_t first = 0;
    std::uint64_t count = 0;
  };
  BlockLayout layers(Layers which) const;

  // A range of the outer dimension of every block: see Geometry::with_outers(). Borrows the memory.
  BlockLayout outers(Geometry::Outers which) const {
    return BlockLayout(geometry_.with_outers(which), regions_, {});
  }

  const Geometry& geometry() const { return geometry_; }
  const LayoutConfig& config() const { return geometry_.config(); }
  StorageKind storage_kind() const { return regions_.front().kind(); }
  int device_id() const { return regions_.front().device_id(); }

  // The regions in the geometry's order, each aligned to kRegionAlignment by absolute address (or
  // to kFileRegionAlignment by file offset).
  std::span<const RegionView> regions() const { return regions_; }

  // The memory it owns: one Region that holds all regions, or one each; empty if borrowed.
  std::span<const Region> owned() const { return owned_; }
  std::span<Region> owned() { return owned_; }

  // REQUIRES: the storage is not disk.
  std::byte* address(PieceLocation location) const {
    return regions_[location.region].data() + location.offset_bytes;
  }

 private:
  friend class LayoutAssembler;  // builder.cpp
  BlockLayout(Geometry geometry, std::vector<RegionView> regions, std::vector<Region> owned);

  Geometry geometry_;
  std::vector<RegionView> regions_;
  std::vector<Region> owned_;  // empty if the memory is borrowed
};

}  // namespace cairn
