#pragma once

#include <cstddef>
#include <span>

#include "layouts/block_layout.hpp"
#include "layouts/copy_plan.hpp"

namespace cairn {

// Memory blocks can be copied from or to: a layout's or staging memory. Borrows.
struct Place {
  const Geometry* geometry = nullptr;
  std::span<const RegionView> regions;

  static Place of(const BlockLayout& layout) { return {&layout.geometry(), layout.regions()}; }

  StorageKind kind() const { return regions.front().kind(); }
  bool on_disk() const { return kind() == StorageKind::disk; }
  int device_id() const { return regions.front().device_id(); }
  // REQUIRES: not on disk.
  std::byte* address(PieceLocation at) const { return regions[at.region].data() + at.offset_bytes; }
};

}  // namespace cairn
