#pragma once

// The type-state builder of a BlockLayout: each step is a type, offers only the steps that may
// follow, and is used up by taking one (&&-qualified members), so a wrong order does not compile
// and the use of a step already taken is found by clang-tidy's bugprone-use-after-move.
//
//   auto layout = LayoutBuilder()
//                     .config(shape)
//                     .layer_separate(BlockDim::second)
//                     .allocate_device(runtime, {})
//                     .build();                          // Result<BlockLayout>
//
// An error of any step is kept and answered by build(), so a chain needs one check. Memory is
// allocated by build(), not before, and all of it goes back where build() fails.

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/result.hpp"
#include "base/unique_function.hpp"
#include "layouts/block_layout.hpp"
#include "layouts/geometry.hpp"
#include "layouts/layout_config.hpp"
#include "memory/device_runtime.hpp"
#include "memory/region.hpp"
#include "memory/region_registry.hpp"

namespace cairn {

// Each region starts at a multiple of this, by absolute address: wide vector loads and device
// copies want 256 to 512 bytes, and 512 is the granule of device allocators.
inline constexpr std::uint64_t kRegionAlignment = 512;
// The same for offsets in a file: what direct I/O needs on every common disk.
inline constexpr std::uint64_t kFileRegionAlignment = 4096;

// Shape, layout and memory are there.
class [[nodiscard]] BackedLayout {
 public:
  BackedLayout(BackedLayout&&) noexcept = default;
  BackedLayout& operator=(BackedLayout&&) = delete;

  // Errors: those of the steps; impossible, with the sizes, where the regions given do not fit the
  // geometry; what the allocation answers.
  Result<BlockLayout> build() &&;

 private:
  friend class PlacedLayout;
  using Assemble = UniqueFunction<Result<BlockLayout>()>;
  explicit BackedLayout(Assemble assemble) : assemble_(std::move(assemble)) {}
  Assemble assemble_;
};

// Shape and layout are there: memory is next. Memory of its own is one allocation, cut into
// regions. Runtime and registry are borrowed until build().
class [[nodiscard]] PlacedLayout {
 public:
  PlacedLayout(PlacedLayout&&) noexcept = default;
  PlacedLayout& operator=(PlacedLayout&&) = delete;

  BackedLayout allocate_system() &&;
  BackedLayout allocate_pinned(DeviceRuntime& runtime, DeviceRuntime::PinnedOptions options) &&;
  BackedLayout allocate_device(DeviceRuntime& runtime, DeviceRuntime::DeviceOptions options) &&;
  // Memory of that kind from elsewhere.
  using Allocate = UniqueFunction<Result<Region>(std::uint64_t size_bytes)>;
  BackedLayout allocate_by(StorageKind kind, Allocate allocate) &&;
  BackedLayout allocate_unified(DeviceRuntime& runtime, int device_id) &&;
  BackedLayout allocate_disk(std::filesystem::path path) &&;

  // One region for each of the geometry's, in its order; longer ones are used in part. Views are
  // borrowed: their memory must outlive the layout.
  BackedLayout with_memory_regions(std::vector<RegionView> regions) &&;
  BackedLayout with_memory_regions(std::vector<Region> regions) &&;
  // One memory with the regions at these places of it; without any they lie as in memory that is
  // allocated. Errors: what `memory` answers, which build() runs.
  BackedLayout within(UniqueFunction<Result<Region>()> memory,
                      std::vector<RegionView::Part> parts) &&;
  BackedLayout with_registered_regions(const RegionRegistry& registry,
                                       std::vector<RegionId> ids) &&;

 private:
  friend class ConfiguredLayout;
  explicit PlacedLayout(Result<Geometry> geometry) : geometry_(std::move(geometry)) {}
  Result<Geometry> geometry_;
};

// A shape is there: a layout is next.
class [[nodiscard]] ConfiguredLayout {
 public:
  ConfiguredLayout(ConfiguredLayout&&) noexcept = default;
  ConfiguredLayout& operator=(ConfiguredLayout&&) = delete;

  PlacedLayout fully_contiguous() &&;
  PlacedLayout layer_separate(BlockDim dim) &&;
  PlacedLayout in_slots(SlotSpacing spacing) &&;

 private:
  friend class LayoutBuilder;
  explicit ConfiguredLayout(const LayoutConfig& config) : config_(config) {}
  LayoutConfig config_;
};

// Nothing is there yet: the shape is first.
class [[nodiscard]] LayoutBuilder {
 public:
  LayoutBuilder() = default;
  LayoutBuilder(LayoutBuilder&&) noexcept = default;
  LayoutBuilder& operator=(LayoutBuilder&&) = delete;

  ConfiguredLayout config(const LayoutConfig& config) && { return ConfiguredLayout(config); }
};

}  // namespace cairn
