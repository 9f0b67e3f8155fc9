#include "server/codec/tier_memory.hpp"

#include <array>
#include <string>

#include "base/hex.hpp"
#include "layouts/layout_config.hpp"

namespace cairn {
namespace {

using Kind = ExportedMemory::Kind;

// The last is of the contract, but not of this build.
constexpr std::array<std::string_view, 4> kKindWords = {"shm", "file", "cuda_ipc", "cuda_vmm_fd"};
// A region a layer.
constexpr std::size_t kMaxRegions = kMaxLayers;

std::string read_handle(Fields& fields) {
  const std::string hex = fields.string("handle");
  std::string handle(kCudaIpcHandleBytes, '\0');
  if (fields.errors().any() || from_hex(hex, std::as_writable_bytes(std::span(handle)))) {
    return handle;
  }
  fields.errors().add(ErrorCode::malformed, fields.path_of("handle") + " is not " +
                                                std::to_string(2 * kCudaIpcHandleBytes) +
                                                " hex digits");
  return {};
}

ExportedMemory read_memory(Fields& fields) {
  ExportedMemory memory;
  const std::size_t kind = fields.word("kind", kKindWords);
  if (kind == kKindWords.size() - 1) {
    fields.errors().add(ErrorCode::not_implemented,
                        fields.path_of("kind") +
                            " is cuda_vmm_fd, whose descriptor HTTP cannot carry; export memory of "
                            "cudaMalloc, as cuda_ipc");
    return memory;
  }
  memory.kind = static_cast<Kind>(kind);
  if (memory.kind == Kind::cuda_ipc) {
    memory.handle = read_handle(fields);
    memory.device_id =
        static_cast<int>(fields.optional_number("device_id", {0, INT32_MAX}).value_or(0));
  } else {
    memory.path = fields.string("path");
    memory.inode = fields.optional_number("inode", {}).value_or(0);
  }
  memory.size_bytes = fields.number("size_bytes", {1, kMaxLayoutBytes});
  return memory;
}

void read_regions(Fields& fields, std::vector<RegionView::Part>& out) {
  const json* list = fields.optional_list("regions");
  if (list == nullptr) return;
  const std::string path = fields.path_of("regions");
  if (list->size() > kMaxRegions) {
    fields.errors().add(ErrorCode::out_of_range, path + " has " + std::to_string(list->size()) +
                                                     " elements; it takes at most " +
                                                     std::to_string(kMaxRegions));
    return;
  }
  for (const json& item : *list) {
    const std::string at = path + "[" + std::to_string(out.size()) + "]";
    if (!item.is_object()) {
      fields.errors().add(ErrorCode::wrong_type, at + " is no object");
      return;
    }
    Fields members(item, at, fields.errors());
    out.push_back({.offset_bytes = members.number("offset_bytes", {0, kMaxLayoutBytes}),
                   .size_bytes = members.number("size_bytes", {1, kMaxLayoutBytes})});
    members.finish();
  }
}

}  // namespace

ordered_json tier_memory_body(const TierMemory& memory) {
  const ExportedMemory& place = memory.memory;
  ordered_json body = {{"kind", to_string(place.kind)}};
  if (place.kind == Kind::cuda_ipc) {
    body["handle"] = to_hex(std::as_bytes(std::span(place.handle)));
    body["device_id"] = place.device_id;
  } else {
    body["path"] = place.path;
    if (place.inode != 0) body["inode"] = place.inode;
  }
  body["size_bytes"] = place.size_bytes;
  if (!memory.regions.empty()) {
    ordered_json regions = ordered_json::array();
    for (const RegionView::Part& region : memory.regions) {
      regions.push_back({{"offset_bytes", region.offset_bytes}, {"size_bytes", region.size_bytes}});
    }
    body["regions"] = std::move(regions);
  }
  if (memory.strides) {
    body["strides"] = {{"block_bytes", memory.strides->block_bytes},
                       {"layer_bytes", memory.strides->layer_bytes},
                       {"outer_bytes", memory.strides->outer_bytes}};
  }
  return body;
}

TierMemory read_tier_memory(Fields& fields) {
  TierMemory memory{.memory = read_memory(fields)};
  read_regions(fields, memory.regions);
  if (const json* object = fields.optional_object("strides")) {
    Fields members(*object, fields.path_of("strides"), fields.errors());
    memory.strides = {.block_bytes = members.number("block_bytes", {}),
                      .layer_bytes = members.number("layer_bytes", {}),
                      .outer_bytes = members.number("outer_bytes", {})};
    members.finish();
  }
  fields.finish();
  return memory;
}

}  // namespace cairn
