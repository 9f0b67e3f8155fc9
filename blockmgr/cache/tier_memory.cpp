#include "blockmgr/cache/tier_memory.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "base/assert.hpp"

namespace cairn {
namespace {

// Where the regions of a layout lie in its memory.
std::vector<RegionView::Part> parts_of(const BlockLayout& layout) {
  CAIRN_ASSERT(layout.owned().size() == 1, "a tier's memory is one allocation, or one import");
  const std::byte* const base = layout.owned().front().data();
  std::vector<RegionView::Part> parts;
  for (const RegionView& region : layout.regions()) {
    parts.push_back({.offset_bytes = static_cast<std::uint64_t>(region.data() - base),
                     .size_bytes = region.size_bytes()});
  }
  return parts;
}

std::string text_of(const TierMemory::Strides& strides) {
  return std::to_string(strides.block_bytes) + ", " + std::to_string(strides.layer_bytes) +
         " and " + std::to_string(strides.outer_bytes);
}

Result<> check_strides(const TierMemory& memory, const Geometry& geometry) {
  const TierMemory::Strides own = strides_of(geometry);
  if (!memory.strides || *memory.strides == own) return {};
  return Error{ErrorCode::impossible, "strides of a block, a layer and an outer index are " +
                                          text_of(*memory.strides) + " bytes; this layout has " +
                                          text_of(own)};
}

std::string text_of(LayoutKind layout, std::optional<BlockDim> block_dim) {
  std::string text(to_string(layout));
  if (layout == LayoutKind::layer_separate && block_dim) {
    text += ", block_dim " + std::string(to_string(*block_dim));
  }
  return text;
}

std::string text_of(const LayoutConfig& shape) {
  return std::to_string(shape.num_layers) + " layers x " + std::to_string(shape.outer_dim) + " x " +
         std::to_string(shape.page_size) + " x " + std::to_string(shape.inner_dim) + " values of " +
         std::to_string(shape.dtype_width_bytes) + " bytes";
}

Result<> check_form(const TierMemory& memory, const BlockLayout& layout) {
  const Geometry& own = layout.geometry();
  const bool same_layout = !memory.layout || *memory.layout == own.kind();
  const bool same_dim = !memory.block_dim || own.kind() != LayoutKind::layer_separate ||
                        *memory.block_dim == own.block_dim();
  if (!same_layout || !same_dim) {
    return Error{ErrorCode::impossible,
                 "the memory's blocks are " +
                     text_of(memory.layout.value_or(own.kind()), memory.block_dim) +
                     "; the tier is " + text_of(own.kind(), own.block_dim())};
  }
  if (memory.shape && !same_shape(*memory.shape, layout.config())) {
    return Error{ErrorCode::impossible, "the memory's blocks have " + text_of(*memory.shape) +
                                            "; those of the tier have " + text_of(layout.config())};
  }
  return {};
}

}  // namespace

TierMemory::Strides strides_of(const Geometry& geometry) {
  return {.block_bytes = geometry.block_stride_bytes(),
          .layer_bytes = geometry.layer_stride_bytes(),
          .outer_bytes = geometry.outer_stride_bytes()};
}

Result<TierMemory> export_layout(const ExportedLayout& exporting) {
  const BlockLayout& layout = exporting.first;
  if (layout.storage_kind() == StorageKind::disk) {
    return Error{ErrorCode::impossible,
                 "a disk tier is not mapped: its blocks lie behind headers with checksums"};
  }
  auto memory = layout.owned().front().share();
  if (!memory) return std::move(memory).error();
  TierMemory exported{.memory = std::move(*memory),
                      .regions = parts_of(layout),
                      .strides = strides_of(layout.geometry())};
  // For other processes, offsets count from the first byte that they open.
  for (RegionView::Part& part : exported.regions) {
    part.offset_bytes += exported.memory.offset_bytes;
  }
  exported.memory.size_bytes += std::exchange(exported.memory.offset_bytes, 0);
  const std::uint64_t more = exporting.all.config().num_blocks - layout.config().num_blocks;
  if (more > 0) {
    RegionView::Part& region = exported.regions.front();
    region.size_bytes += more * layout.geometry().block_stride_bytes();
    exported.memory.size_bytes = region.offset_bytes + region.size_bytes;
  }
  return exported;
}

Result<> check_import_path(const std::string& field, const std::string& given,
                           std::span<const std::filesystem::path> folders) {
  const std::filesystem::path path(given);
  const bool allowed = path.is_absolute() && path.has_filename() && path.filename() != "." &&
                       path.filename() != ".." && given.find('\0') == std::string::npos &&
                       std::ranges::any_of(folders, [&](const auto& folder) {
                         return path.parent_path() == folder;
                       });
  if (allowed) return {};
  return Error{ErrorCode::forbidden,
               field + " is '" + given.substr(0, 200) + "': " +
                   (folders.empty() ? "this server imports no files; its setting import.folders "
                                      "names where they may lie"
                                    : "it does not lie directly in one of import.folders")};
}

Result<> check_import(const TierMemory& memory, std::span<const std::filesystem::path> folders) {
  if (memory.memory.kind == ExportedMemory::Kind::cuda_ipc) return {};
  if (memory.descriptor) {
    // A client with an open descriptor can open the file anyway. Any path comes from another
    // process.
    if (memory.memory.file != nullptr) return {};
    return Error{ErrorCode::not_found,
                 "the memory was passed as an open file, which ended with the server before this "
                 "one; whoever has it makes the cache again"};
  }
  return check_import_path("memory.import.path", memory.memory.path, folders);
}

Result<BlockLayout> import_layout(PlacedLayout placed, const ImportRequest& request) {
  const ExportedMemory& memory = request.memory.memory;
  const bool is_of_gpu = memory.kind == ExportedMemory::Kind::cuda_ipc ||
                         memory.kind == ExportedMemory::Kind::cuda_vmm_fd;
  const std::string uuid = uuid_of(request.runtime, request.options.device_id);
  if (is_of_gpu && !request.memory.device_uuid.empty() && request.memory.device_uuid != uuid) {
    return Error{ErrorCode::impossible, "the memory is of the device " +
                                            request.memory.device_uuid.substr(0, 64) +
                                            "; the tier is on the device " + uuid};
  }
  auto layout = std::move(placed)
                    .import_memory(request.runtime, {.memory = memory,
                                                     .options = request.options,
                                                     .parts = request.memory.regions})
                    .build();
  if (!layout) return layout;
  CAIRN_TRY(check_form(request.memory, *layout));
  CAIRN_TRY(check_strides(request.memory, layout->geometry()));
  CAIRN_TRY(claim_exported_memory(memory, layout->owned().front().shared_fd(), parts_of(*layout)));
  return layout;
}

Result<> check_still_exported(const SameMemory& memory, const BlockLayout& layout) {
  if (is_known_same(memory.asked.memory, memory.had.memory)) return {};
  return check_still_exported(memory.asked.memory, layout.owned().front().shared_fd());
}

}  // namespace cairn
