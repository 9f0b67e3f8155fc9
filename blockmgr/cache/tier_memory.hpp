#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "blockmgr/index/config.hpp"
#include "layouts/builder.hpp"

namespace cairn {

// How another process maps the memory of a tier. impossible where it cannot: a disk tier, a runtime
// without such memory.
Result<TierMemory> export_layout(const BlockLayout& layout);

// What a client may name, before anything is opened: forbidden for a path that lies not directly in
// one of the folders. `field` names it in errors.
Result<> check_import_path(const std::string& field, const std::string& path,
                           std::span<const std::filesystem::path> folders);
Result<> check_import(const TierMemory& memory, std::span<const std::filesystem::path> folders);

// A tier on that memory, whose bytes no other cache or server may have imported (state_conflict).
// impossible where it does not fit the layout.
struct ImportRequest {
  const TierMemory& memory;
  DeviceRuntime& runtime;
  DeviceRuntime::ImportOptions options;
};
Result<BlockLayout> import_layout(PlacedLayout placed, const ImportRequest& request);

// Whether who opens the memory that is asked for now finds what the layout, made on it before, lies
// in: state_conflict.
struct SameMemory {
  const TierMemory& asked;
  const TierMemory& had;
};
Result<> check_still_exported(const SameMemory& memory, const BlockLayout& layout);

}  // namespace cairn
