#include "server/codec/tier_memory_body.hpp"

#include <array>
#include <string>

#include "base/hex.hpp"
#include "base/passed_files.hpp"
#include "layouts/layout_config.hpp"
#include "server/codec/layout_body.hpp"

namespace cairn {
namespace {

using Kind = ExportedMemory::Kind;

constexpr std::array<std::string_view, 4> kKindWords = {"shm", "file", "cuda_ipc", "cuda_vmm_fd"};
// One region per layer.
constexpr std::size_t kMaxRegions = kMaxLayers;

bool is_of_device(Kind kind) { return kind == Kind::cuda_ipc || kind == Kind::cuda_vmm_fd; }

TierMemory read_memory(Fields& fields) {
  TierMemory read;
  ExportedMemory& memory = read.memory;
  memory.kind = static_cast<Kind>(fields.word("kind", kKindWords));
  if (memory.kind == Kind::shm || memory.kind == Kind::cuda_vmm_fd) {
    read.descriptor = fields.optional_number("descriptor", {0, kMaxPassedFiles - 1});
  }
  switch (memory.kind) {
    case Kind::shm:
    case Kind::file:
      memory.path =
          read.descriptor ? fields.optional_string("path").value_or("") : fields.string("path");
      memory.inode = fields.optional_number("inode", {}).value_or(0);
      break;
    case Kind::cuda_ipc:
      memory.handle = read_cuda_handle(fields);
      break;
    case Kind::cuda_vmm_fd:
      if (!read.descriptor) read.descriptor = 0;
      break;
  }
  if (is_of_device(memory.kind)) {
    memory.device_id =
        static_cast<int>(fields.optional_number("device_id", {0, INT32_MAX}).value_or(0));
  }
  memory.size_bytes = fields.number("size_bytes", {1, kMaxLayoutBytes});
  read.device_uuid = fields.optional_string("device_uuid").value_or("");
  fields.optional_number("generation", {});  // of the exporter's tier
  return read;
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

std::string read_cuda_handle(Fields& fields) {
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

namespace {

ordered_json strides_body(const TierMemory::Strides& strides) {
  return {{"block_bytes", strides.block_bytes},
          {"layer_bytes", strides.layer_bytes},
          {"outer_bytes", strides.outer_bytes}};
}

}  // namespace

ordered_json tier_memory_body(const TierMemory& memory) {
  const ExportedMemory& place = memory.memory;
  ordered_json body = {{"kind", to_string(place.kind)}};
  if (memory.descriptor) body["descriptor"] = *memory.descriptor;
  if (!place.path.empty()) body["path"] = place.path;
  if (place.inode != 0) body["inode"] = place.inode;
  if (!place.handle.empty()) body["handle"] = to_hex(std::as_bytes(std::span(place.handle)));
  if (is_of_device(place.kind)) body["device_id"] = place.device_id;
  if (!memory.device_uuid.empty()) body["device_uuid"] = memory.device_uuid;
  body["size_bytes"] = place.size_bytes;
  if (memory.generation) body["generation"] = *memory.generation;
  if (!memory.regions.empty()) {
    ordered_json regions = ordered_json::array();
    for (const RegionView::Part& region : memory.regions) {
      regions.push_back({{"offset_bytes", region.offset_bytes}, {"size_bytes", region.size_bytes}});
    }
    body["regions"] = std::move(regions);
  }
  if (memory.strides) body["strides"] = strides_body(*memory.strides);
  if (memory.layout) body["layout"] = to_string(*memory.layout);
  if (memory.block_dim) body["block_dim"] = to_string(*memory.block_dim);
  if (memory.shape) body["shape"] = block_shape_body(*memory.shape);
  for (const TierMemory::Group& group : memory.kv_groups) {
    body["kv_groups"][group.name] = {{"shape", block_shape_body(group.shape)},
                                     {"strides", strides_body(group.strides)}};
  }
  return body;
}

TierMemory read_tier_memory(Fields& fields) {
  TierMemory memory = read_memory(fields);
  read_regions(fields, memory.regions);
  if (const json* object = fields.optional_object("strides")) {
    Fields members(*object, fields.path_of("strides"), fields.errors());
    memory.strides = {.block_bytes = members.number("block_bytes", {}),
                      .layer_bytes = members.number("layer_bytes", {}),
                      .outer_bytes = members.number("outer_bytes", {})};
    members.finish();
  }
  const LayoutWords words = read_layout(fields, LayoutField::optional);
  memory.layout = words.layout;
  memory.block_dim = words.block_dim;
  if (fields.has("shape")) memory.shape = read_block_shape(fields);
  fields.finish();
  return memory;
}

}  // namespace cairn
