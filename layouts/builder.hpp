#pragma once

// Type-state builder of a BlockLayout. Each step is a type of its own, offers only the steps that
// may follow, and is consumed by the next (&&-qualified members). So a wrong order does not
// compile, and clang-tidy's bugprone-use-after-move finds a step used twice.
//
//   auto layout = LayoutBuilder()
//                     .config(shape)
//                     .layer_separate(BlockDim::second)
//                     .allocate_device(runtime, {})
//                     .build();                          // Result<BlockLayout>
//
// build() returns the first error of any step, so a chain needs one check. build() also allocates
// the memory, and frees all of it on failure.

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/result.hpp"
#include "base/unique_function.hpp"
#include "layouts/block_layout.hpp"
#include "layouts/geometry.hpp"
#include "layouts/layout_config.hpp"
#include "memory/device_runtime.hpp"
#include "memory/exported_memory.hpp"
#include "memory/region.hpp"
#include "memory/region_registry.hpp"

namespace cairn {

// Each region starts at a multiple of this address: wide vector loads and device copies prefer 256
// to 512 bytes, and device allocators use granules of 512.
inline constexpr std::uint64_t kRegionAlignment = 512;
// The same for file offsets: what direct I/O needs on common disks.
inline constexpr std::uint64_t kFileRegionAlignment = 4096;

// Has shape, layout and memory.
class [[nodiscard]] BackedLayout {
 public:
  BackedLayout(BackedLayout&&) noexcept = default;
  BackedLayout& operator=(BackedLayout&&) = delete;

  // Errors: those of the steps; impossible, with the sizes, if the given regions do not fit the
  // geometry; those of the allocation.
  Result<BlockLayout> build() &&;

 private:
  friend class ConfiguredLayout;
  friend class PlacedLayout;
  using Assemble = UniqueFunction<Result<BlockLayout>()>;
  explicit BackedLayout(Assemble assemble) : assemble_(std::move(assemble)) {}
  Assemble assemble_;
};

// Has shape and layout; memory is next, by the step of its kind. Allocated memory is one
// allocation, cut into regions. Borrows the arguments that are references until build().
class [[nodiscard]] PlacedLayout {
 public:
  PlacedLayout(PlacedLayout&&) noexcept = default;
  PlacedLayout& operator=(PlacedLayout&&) = delete;

  BackedLayout allocate_system() &&;
  BackedLayout allocate_pinned(DeviceRuntime& runtime, DeviceRuntime::PinnedOptions options) &&;
  // `by`: an allocator of that device's memory; without it, each layout asks the driver.
  using AllocateDevice = UniqueFunction<Result<Region>(std::uint64_t size_bytes,
                                                       DeviceRuntime::DeviceOptions options)>;
  BackedLayout allocate_device(DeviceRuntime& runtime, DeviceRuntime::DeviceOptions options,
                               AllocateDevice by = {}) &&;
  BackedLayout allocate_unified(DeviceRuntime& runtime, int device_id) &&;
  // One file per region of the geometry, in its order; see Region::disk_file().
  BackedLayout allocate_disk(std::vector<std::filesystem::path> paths,
                             Region::FileRoom room = Region::FileRoom::reserved) &&;

  // Another process's memory, with the regions at `parts` of it; without `parts` as in an
  // allocation. Errors: those of DeviceRuntime::import_memory().
  struct Import {
    const ExportedMemory& memory;
    DeviceRuntime::ImportOptions options;
    std::vector<RegionView::Part> parts;
  };
  BackedLayout import_memory(DeviceRuntime& runtime, Import import) &&;
  // One region per region of the geometry, in its order; longer ones are used in part. They are
  // borrowed: their memory must outlive the layout.
  BackedLayout with_memory_regions(std::vector<RegionView> regions) &&;
  BackedLayout with_registered_regions(const RegionRegistry& registry,
                                       std::vector<RegionId> ids) &&;

 private:
  friend class ConfiguredLayout;
  explicit PlacedLayout(Result<Geometry> geometry) : geometry_(std::move(geometry)) {}
  Result<Geometry> geometry_;
};

// Has a shape; a layout is next.
class [[nodiscard]] ConfiguredLayout {
 public:
  ConfiguredLayout(ConfiguredLayout&&) noexcept = default;
  ConfiguredLayout& operator=(ConfiguredLayout&&) = delete;

  PlacedLayout fully_contiguous() &&;
  PlacedLayout layer_separate(BlockDim dim) &&;
  PlacedLayout in_slots(SlotSpacing spacing) &&;
  // In the slots of a fully contiguous layout, and in its memory, which is borrowed: blocks of
  // another size, each from the beginning of a slot on (Geometry::with_shape()). The shape's
  // num_blocks and alignment are those of the slots. Error: impossible for other layouts.
  BackedLayout in_slots_of(const BlockLayout& slots) &&;

 private:
  friend class LayoutBuilder;
  explicit ConfiguredLayout(const LayoutConfig& config) : config_(config) {}
  LayoutConfig config_;
};

// Empty; the shape is first.
class [[nodiscard]] LayoutBuilder {
 public:
  LayoutBuilder() = default;
  LayoutBuilder(LayoutBuilder&&) noexcept = default;
  LayoutBuilder& operator=(LayoutBuilder&&) = delete;

  ConfiguredLayout config(const LayoutConfig& config) && { return ConfiguredLayout(config); }
};

}  // namespace cairn
