#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "blockmgr/index/config.hpp"
#include "layouts/builder.hpp"

namespace cairn {

// Describes how another process maps a tier's memory. `first` is its first part, and `all` has all
// slots: more than `first` if the tier has grown in one file. Error: impossible for a disk tier, or
// if the runtime does not have such memory.
struct ExportedLayout {
  const BlockLayout& first;
  const BlockLayout& all;
};
Result<TierMemory> export_layout(const ExportedLayout& layout);
TierMemory::Strides strides_of(const Geometry& geometry);

// Checks what a client names, before anything is opened. Error: forbidden unless the path lies
// directly in one of the folders. `field` names it in errors.
Result<> check_import_path(const std::string& field, const std::string& path,
                           std::span<const std::filesystem::path> folders);
Result<> check_import(const TierMemory& memory, std::span<const std::filesystem::path> folders);

// Builds a tier on that memory. Errors: state_conflict if another cache or server has imported its
// bytes; impossible if it does not fit the layout, or is of another GPU.
struct ImportRequest {
  const TierMemory& memory;
  DeviceRuntime& runtime;
  DeviceRuntime::ImportOptions options;
};
Result<BlockLayout> import_layout(PlacedLayout placed, const ImportRequest& request);

// Checks that opening `asked` now yields the memory on which the layout was built before. Error:
// state_conflict if not.
struct SameMemory {
  const TierMemory& asked;
  const TierMemory& had;
};
Result<> check_still_exported(const SameMemory& memory, const BlockLayout& layout);

}  // namespace cairn
