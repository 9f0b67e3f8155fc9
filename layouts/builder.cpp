#include "layouts/builder.hpp"

#include <algorithm>
#include <functional>
#include <string>
#include <tuple>

#include "base/assert.hpp"
#include "base/checked.hpp"

namespace cairn {
namespace {

// A region's start in its address space or file.
struct Place {
  int fd = -1;
  std::uint64_t start_bytes = 0;
};

Place place_of(const RegionView& region) {
  if (region.kind() == StorageKind::disk) return {region.fd(), region.file_offset_bytes()};
  return {-1, reinterpret_cast<std::uintptr_t>(region.data())};
}

std::uint64_t region_alignment(StorageKind kind) {
  return kind == StorageKind::disk ? kFileRegionAlignment : kRegionAlignment;
}

std::string describe(const RegionView& region) {
  std::string text(to_string(region.kind()));
  if (region.device_id() >= 0) text += " of device " + std::to_string(region.device_id());
  return text;
}

Error impossible(std::string detail) { return {ErrorCode::impossible, std::move(detail)}; }

Result<> check_count(const Geometry& geometry, std::size_t count) {
  if (count == geometry.num_regions()) return {};
  return impossible(std::to_string(count) + " regions were given; a " +
                    std::string(to_string(geometry.kind())) + " layout of " +
                    std::to_string(geometry.config().num_layers) + " layers needs " +
                    std::to_string(geometry.num_regions()) + " of " +
                    std::to_string(geometry.region_bytes()) + " bytes");
}

// Checks one region; `first` is the layout's first region.
Result<> check_region(const Geometry& geometry, const RegionView& first, const RegionView& region,
                      std::size_t index) {
  const std::string name = "region " + std::to_string(index);
  if (region.size_bytes() < geometry.region_bytes()) {
    return impossible(name + " has " + std::to_string(region.size_bytes()) +
                      " bytes; the layout needs " + std::to_string(geometry.region_bytes()));
  }
  if (region.kind() != first.kind() || region.device_id() != first.device_id()) {
    return impossible(name + " is " + describe(region) + " memory, region 0 is " + describe(first) +
                      "; a layout has one kind, on one device");
  }
  const std::uint64_t alignment = region_alignment(region.kind());
  const std::uint64_t beyond = place_of(region).start_bytes % alignment;
  if (beyond != 0) {
    return impossible(name + " starts " + std::to_string(beyond) + " bytes after a multiple of " +
                      std::to_string(alignment) + "; it must start at one");
  }
  return {};
}

Result<> check_overlap(const Geometry& geometry, std::span<const RegionView> regions) {
  struct Placed {
    Place place;
    std::size_t index;
  };
  std::vector<Placed> placed;
  placed.reserve(regions.size());
  for (std::size_t i = 0; i < regions.size(); ++i) placed.push_back({place_of(regions[i]), i});
  std::ranges::sort(placed, {},
                    [](const Placed& p) { return std::tie(p.place.fd, p.place.start_bytes); });
  for (std::size_t i = 1; i < placed.size(); ++i) {
    const Placed& a = placed[i - 1];
    const Placed& b = placed[i];
    const std::uint64_t apart = b.place.start_bytes - a.place.start_bytes;
    if (a.place.fd == b.place.fd && apart < geometry.region_bytes()) {
      return impossible("regions " + std::to_string(a.index) + " and " + std::to_string(b.index) +
                        " start " + std::to_string(apart) + " bytes apart; the layout uses " +
                        std::to_string(geometry.region_bytes()) + " bytes of each");
    }
  }
  return {};
}

// How one allocation is cut into regions, so that blocks start at multiples of the shape's
// alignment.
struct Cut {
  std::uint64_t alignment = 0;
  std::uint64_t stride_bytes = 0;      // from region to region
  std::uint64_t allocation_bytes = 0;  // includes slack to align the start
};

Result<Cut> cut_for(const Geometry& geometry, StorageKind kind) {
  const std::uint64_t alignment = std::max(region_alignment(kind), geometry.config().alignment);
  const std::uint64_t regions = geometry.num_regions();
  const auto stride = checked_align_up(geometry.region_bytes(), alignment);
  const auto before_last = stride ? checked_mul(*stride, regions - 1) : std::nullopt;
  auto total = before_last ? checked_add(*before_last, geometry.region_bytes()) : std::nullopt;
  // A file starts at offset 0; memory may start anywhere.
  if (total && kind != StorageKind::disk) total = checked_add(*total, alignment - 1);
  if (!total || *total > kMaxLayoutBytes) {
    return Error{ErrorCode::impossible_shape, std::to_string(regions) + " regions of " +
                                                  std::to_string(geometry.region_bytes()) +
                                                  " bytes, aligned to " +
                                                  std::to_string(alignment) + ", are above " +
                                                  std::to_string(kMaxLayoutBytes) + " bytes"};
  }
  return Cut{alignment, *stride, *total};
}

using Allocate = UniqueFunction<Result<Region>(std::uint64_t size_bytes)>;

}  // namespace

// The only code that creates layouts; checks their parts first.
class LayoutAssembler {
 public:
  static Result<BlockLayout> from_regions(const Geometry& geometry,
                                          std::span<const RegionView> regions,
                                          std::vector<Region> owned) {
    CAIRN_TRY(check_count(geometry, regions.size()));
    std::vector<RegionView> used;
    for (std::size_t i = 0; i < regions.size(); ++i) {
      CAIRN_TRY(check_region(geometry, regions.front(), regions[i], i));
      used.push_back(
          regions[i].view({.offset_bytes = 0, .size_bytes = geometry.region_bytes()}).value());
    }
    CAIRN_TRY(check_overlap(geometry, used));
    return BlockLayout(geometry, std::move(used), std::move(owned));
  }

  static Result<BlockLayout> from_allocation(const Geometry& geometry, StorageKind kind,
                                             Allocate& allocate) {
    auto cut = cut_for(geometry, kind);
    if (!cut) return std::move(cut).error();
    auto base = allocate(cut->allocation_bytes);
    if (!base) return std::move(base).error();
    return cut_up(geometry, *cut, std::move(*base));
  }

  static Result<BlockLayout> from_memory(const Geometry& geometry, Region memory,
                                         std::span<const RegionView::Part> parts) {
    if (parts.empty()) {
      auto cut = cut_for(geometry, memory.kind());
      if (!cut) return std::move(cut).error();
      return cut_up(geometry, *cut, std::move(memory));
    }
    std::vector<RegionView> regions;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      auto region = memory.view(parts[i]);
      if (!region) {
        return impossible("region " + std::to_string(i) + ": " + region.error().detail);
      }
      regions.push_back(*region);
    }
    std::vector<Region> owned;
    owned.push_back(std::move(memory));
    return from_regions(geometry, regions, std::move(owned));
  }

  static BlockLayout from_slots(const BlockLayout& slots, const LayoutConfig& shape) {
    return BlockLayout(slots.geometry_.with_shape(shape), slots.regions_, {});
  }

 private:
  // Places regions one after another, from the first aligned address in `memory`.
  static Result<BlockLayout> cut_up(const Geometry& geometry, const Cut& cut, Region memory) {
    const std::uint64_t start = place_of(memory.view()).start_bytes;
    std::uint64_t offset = checked_align_up(start, cut.alignment).value() - start;
    std::vector<RegionView> regions;
    for (std::uint32_t i = 0; i < geometry.num_regions(); ++i) {
      auto region = memory.view({.offset_bytes = offset, .size_bytes = geometry.region_bytes()});
      if (!region) return std::move(region).error();
      regions.push_back(*region);
      offset += cut.stride_bytes;
    }
    std::vector<Region> owned;
    owned.push_back(std::move(memory));
    return from_regions(geometry, regions, std::move(owned));
  }
};

BlockLayout::BlockLayout(Geometry geometry, std::vector<RegionView> regions,
                         std::vector<Region> owned)
    : geometry_(std::move(geometry)), regions_(std::move(regions)), owned_(std::move(owned)) {}

BlockLayout BlockLayout::joined(std::span<const BlockLayout* const> parts) {
  std::vector<Geometry> geometries;
  std::vector<RegionView> regions;
  for (const BlockLayout* part : parts) {
    geometries.push_back(part->geometry());
    regions.insert(regions.end(), part->regions().begin(), part->regions().end());
  }
  return BlockLayout(Geometry::joined(geometries), std::move(regions), {});
}

BlockLayout BlockLayout::layers(Layers which) const {
  const std::uint64_t of_a_part = geometry_.config().num_layers;
  CAIRN_ASSERT(which.first + which.count <= of_a_part, "there are no such layers");
  std::vector<RegionView> regions;
  if (geometry_.kind() == LayoutKind::fully_contiguous) {
    const std::uint64_t before_bytes = which.first * geometry_.layer_stride_bytes();
    for (const RegionView& region : regions_) {
      regions.push_back(region
                            .view({.offset_bytes = before_bytes,
                                   .size_bytes = region.size_bytes() - before_bytes})
                            .value());
    }
  } else {
    for (std::size_t part = 0; part < regions_.size(); part += of_a_part) {
      const auto first = regions_.begin() + static_cast<std::ptrdiff_t>(part + which.first);
      regions.insert(regions.end(), first, first + static_cast<std::ptrdiff_t>(which.count));
    }
  }
  return BlockLayout(geometry_.with_layers(which.count), std::move(regions), {});
}

namespace {

// The last step if memory still has to be allocated.
auto allocation(Result<Geometry> geometry, StorageKind kind, Allocate allocate) {
  return [geometry = std::move(geometry), kind,
          allocate = std::move(allocate)]() mutable -> Result<BlockLayout> {
    if (!geometry) return geometry.error();
    return LayoutAssembler::from_allocation(*geometry, kind, allocate);
  };
}

}  // namespace

PlacedLayout ConfiguredLayout::fully_contiguous() && {
  if (auto valid = validate(config_); !valid) return PlacedLayout(std::move(valid).error());
  return PlacedLayout(Geometry::fully_contiguous(config_));
}

PlacedLayout ConfiguredLayout::layer_separate(BlockDim dim) && {
  if (auto valid = validate(config_); !valid) return PlacedLayout(std::move(valid).error());
  return PlacedLayout(Geometry::layer_separate(config_, dim));
}

PlacedLayout ConfiguredLayout::in_slots(SlotSpacing spacing) && {
  if (auto valid = validate(config_); !valid) return PlacedLayout(std::move(valid).error());
  if (auto fits = check_slots(config_, spacing); !fits) {
    return PlacedLayout(std::move(fits).error());
  }
  return PlacedLayout(Geometry::in_slots(config_, spacing));
}

BackedLayout ConfiguredLayout::in_slots_of(const BlockLayout& slots) && {
  return BackedLayout([config = config_, &slots]() -> Result<BlockLayout> {
    if (slots.geometry().kind() != LayoutKind::fully_contiguous) {
      return impossible(
          "blocks of another shape lie in the slots of a fully_contiguous layout; this "
          "one is " +
          std::string(to_string(slots.geometry().kind())));
    }
    return LayoutAssembler::from_slots(slots, config);
  });
}

BackedLayout PlacedLayout::allocate_system() && {
  return BackedLayout(allocation(std::move(geometry_), StorageKind::system, &Region::system));
}

BackedLayout PlacedLayout::allocate_pinned(DeviceRuntime& runtime,
                                           DeviceRuntime::PinnedOptions options) && {
  return BackedLayout(allocation(std::move(geometry_), StorageKind::pinned,
                                 [&runtime, options](std::uint64_t size_bytes) {
                                   return runtime.allocate_pinned(size_bytes, options);
                                 }));
}

BackedLayout PlacedLayout::allocate_device(DeviceRuntime& runtime,
                                           DeviceRuntime::DeviceOptions options,
                                           AllocateDevice by) && {
  return BackedLayout(allocation(
      std::move(geometry_), StorageKind::device,
      [&runtime, options, by = std::move(by)](std::uint64_t size_bytes) mutable {
        return by ? by(size_bytes, options) : runtime.allocate_device(size_bytes, options);
      }));
}

BackedLayout PlacedLayout::allocate_unified(DeviceRuntime& runtime, int device_id) && {
  return BackedLayout(allocation(std::move(geometry_), StorageKind::unified,
                                 [&runtime, device_id](std::uint64_t size_bytes) {
                                   return runtime.allocate_unified(device_id, size_bytes);
                                 }));
}

BackedLayout PlacedLayout::allocate_disk(std::vector<std::filesystem::path> paths,
                                         Region::FileRoom room) && {
  return BackedLayout([geometry = std::move(geometry_), paths = std::move(paths),
                       room]() mutable -> Result<BlockLayout> {
    if (!geometry) return geometry.error();
    CAIRN_TRY(check_count(*geometry, paths.size()));
    std::vector<Region> files;
    std::vector<RegionView> regions;
    for (const std::filesystem::path& path : paths) {
      auto file = Region::disk_file(path, geometry->region_bytes(), room);
      if (!file) return std::move(file).error();
      regions.push_back(file->view());
      files.push_back(std::move(*file));
    }
    return LayoutAssembler::from_regions(*geometry, regions, std::move(files));
  });
}

BackedLayout PlacedLayout::import_memory(DeviceRuntime& runtime, Import import) && {
  return BackedLayout([geometry = std::move(geometry_), &runtime,
                       import = std::move(import)]() mutable -> Result<BlockLayout> {
    if (!geometry) return geometry.error();
    auto memory = runtime.import_memory(import.memory, import.options);
    if (!memory) return std::move(memory).error();
    return LayoutAssembler::from_memory(*geometry, std::move(*memory), import.parts);
  });
}

BackedLayout PlacedLayout::with_memory_regions(std::vector<RegionView> regions) && {
  return BackedLayout([geometry = std::move(geometry_),
                       regions = std::move(regions)]() mutable -> Result<BlockLayout> {
    if (!geometry) return geometry.error();
    return LayoutAssembler::from_regions(*geometry, regions, {});
  });
}

BackedLayout PlacedLayout::with_registered_regions(const RegionRegistry& registry,
                                                   std::vector<RegionId> ids) && {
  return BackedLayout([geometry = std::move(geometry_), &registry,
                       ids = std::move(ids)]() mutable -> Result<BlockLayout> {
    if (!geometry) return geometry.error();
    std::vector<RegionView> views;
    for (const RegionId id : ids) {
      auto region = registry.get(id);
      if (!region) return std::move(region).error();
      views.push_back(*region);
    }
    return LayoutAssembler::from_regions(*geometry, views, {});
  });
}

Result<BlockLayout> BackedLayout::build() && { return assemble_(); }

}  // namespace cairn
