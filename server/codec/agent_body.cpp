#include "server/codec/agent_body.hpp"

#include <algorithm>
#include <array>

#include "base/hex.hpp"
#include "base/passed_files.hpp"
#include "server/codec/dom_blocks.hpp"
#include "server/codec/layout_body.hpp"
#include "server/codec/tier_memory_body.hpp"

namespace cairn {
namespace {

using Kind = ExportedMemory::Kind;

constexpr std::array<std::string_view, 3> kKinds = {"shm", "cuda_ipc", "cuda_vmm_fd"};
constexpr std::array<Kind, 3> kKindOfWord = {Kind::shm, Kind::cuda_ipc, Kind::cuda_vmm_fd};
// One region per layer.
constexpr std::size_t kMaxRegions = kMaxLayers;

EngineMemoryConfig::Part read_region(const json& item, const std::string& path,
                                     DecodeErrors& errors) {
  EngineMemoryConfig::Part part;
  if (!item.is_object()) {
    errors.add(ErrorCode::wrong_type, path + " is no object");
    return part;
  }
  Fields fields(item, path, errors);
  part.memory.kind = kKindOfWord[fields.word("kind", kKinds)];
  const auto descriptor = [&] {
    return static_cast<std::uint32_t>(fields.number("descriptor", {0, kMaxPassedFiles - 1}));
  };
  switch (part.memory.kind) {
    case Kind::shm:
      if (fields.has("descriptor")) {
        part.descriptor = descriptor();
      } else {
        part.memory.path = fields.string("path");
      }
      break;
    case Kind::cuda_ipc:
      part.memory.handle = read_cuda_handle(fields);
      break;
    case Kind::cuda_vmm_fd:
      part.descriptor = descriptor();
      break;
    case Kind::file:
      break;  // not in kKinds
  }
  part.offset_bytes = fields.number("offset_bytes", {0, kMaxLayoutBytes});
  part.size_bytes = fields.number("size_bytes", {1, kMaxLayoutBytes});
  part.device_uuid = fields.optional_string("device_uuid").value_or("");
  fields.finish();
  return part;
}

void read_regions(Fields& fields, std::vector<EngineMemoryConfig::Part>& out) {
  const json* list = fields.list("regions");
  if (list == nullptr) return;
  if (list->empty() || list->size() > kMaxRegions) {
    fields.errors().add(ErrorCode::out_of_range, "regions has " + std::to_string(list->size()) +
                                                     " elements; it takes 1 to " +
                                                     std::to_string(kMaxRegions));
    return;
  }
  for (const json& item : *list) {
    out.push_back(
        read_region(item, "regions[" + std::to_string(out.size()) + "]", fields.errors()));
    if (fields.errors().any()) return;
  }
}

std::vector<std::uint32_t> read_block_numbers(Fields& fields, std::size_t max_blocks) {
  std::vector<std::uint32_t> blocks;
  const json* list = fields.list("blocks");
  if (list == nullptr) return blocks;
  if (list->size() > max_blocks) {
    fields.errors().add(ErrorCode::out_of_range, "blocks has " + std::to_string(list->size()) +
                                                     " elements; it takes at most " +
                                                     std::to_string(max_blocks));
    return blocks;
  }
  blocks.reserve(list->size());
  for (const json& item : *list) {
    blocks.push_back(static_cast<std::uint32_t>(read_number(
        item, "blocks[" + std::to_string(blocks.size()) + "]", kAnyU32, fields.errors())));
    if (fields.errors().any()) return blocks;
  }
  return blocks;
}

ordered_json descriptor_body(const EngineMemoryInfo& info, std::size_t region, bool with_handles) {
  const EngineMemoryConfig::Part& part = info.config.regions[region];
  ordered_json body = {{"agent", info.config.name},
                       {"region", region},
                       {"kind", to_string(part.memory.kind)},
                       {"device_id", info.config.device_id},
                       {"device_uuid", info.device_uuid}};
  if (part.descriptor) body["descriptor"] = *part.descriptor;
  if (!part.memory.path.empty()) body["path"] = part.memory.path;
  if (info.inodes[region] != 0) body["inode"] = info.inodes[region];
  if (with_handles && !part.memory.handle.empty()) {
    body["handle"] = to_hex(std::as_bytes(std::span(part.memory.handle)));
  }
  body["offset_bytes"] = part.offset_bytes;
  body["size_bytes"] = part.size_bytes;
  body["used_bytes"] = info.region_bytes;
  body["layout"] = to_string(info.config.layout);
  body["strides"] = {{"block_bytes", info.block_stride_bytes},
                     {"layer_bytes", info.layer_stride_bytes},
                     {"outer_bytes", info.outer_stride_bytes}};
  return body;
}

}  // namespace

bool EngineMemoryBody::is_tethered() const {
  return std::ranges::any_of(config.regions,
                             [](const auto& part) { return part.descriptor.has_value(); });
}

EngineMemoryBody read_engine_memory_body(Fields& fields, std::string name) {
  DecodeErrors& errors = fields.errors();
  EngineMemoryBody body;
  EngineMemoryConfig& config = body.config;
  config.name = std::move(name);
  config.device_id =
      static_cast<int>(fields.optional_number("device_id", {0, INT32_MAX}).value_or(0));
  const LayoutWords words = read_layout(fields, LayoutField::required);
  config.layout = words.layout.value_or(LayoutKind::fully_contiguous);
  config.block_dim = words.block_dim.value_or(BlockDim::first);
  const std::uint64_t num_blocks = fields.number("num_blocks", {1, kMaxBlocks});
  config.shape = read_block_shape(fields);
  config.shape.num_blocks = num_blocks;
  read_regions(fields, config.regions);
  if (const auto ms = fields.optional_number("lease_ms", {1, UINT32_MAX})) {
    body.lease_ms = static_cast<std::uint32_t>(*ms);
  }
  if (body.lease_ms && body.is_tethered()) {
    errors.add(ErrorCode::malformed,
               "lease_ms is given; an agent whose memory is passed as open files ends with the "
               "connection that it was registered over");
  }
  return body;
}

ordered_json engine_memory_body(const EngineMemoryInfo& info, bool with_handles) {
  const EngineMemoryConfig& config = info.config;
  const LayoutConfig& shape = config.shape;
  ordered_json body = {{"name", config.name},
                       {"device_id", config.device_id},
                       {"device_uuid", info.device_uuid},
                       {"num_blocks", shape.num_blocks},
                       {"layout", to_string(config.layout)}};
  if (config.layout == LayoutKind::layer_separate) body["block_dim"] = to_string(config.block_dim);
  body["shape"] = block_shape_body(shape);
  body["block_bytes"] = block_bytes(shape);
  ordered_json descriptors = ordered_json::array();
  for (std::size_t region = 0; region < config.regions.size(); ++region) {
    descriptors.push_back(descriptor_body(info, region, with_handles));
  }
  body["descriptors"] = std::move(descriptors);
  body["token"] = info.holder ? ordered_json(*info.holder) : ordered_json(nullptr);
  body["ends_with"] = info.expires_at_unix_ms ? "lease" : "connection";
  if (info.expires_at_unix_ms) body["expires_at_ms"] = *info.expires_at_unix_ms;
  body["copies"] = info.copies;
  return body;
}

EngineCopyBody read_engine_copy(Fields& fields, EngineCopyKind kind, std::size_t max_keys) {
  EngineCopyBody body;
  body.memory = fields.string("agent");
  body.keys = read_keys(fields, "keys", max_keys);
  body.blocks = read_block_numbers(fields, max_keys);
  if (kind == EngineCopyKind::store) {
    const json* parents = fields.optional_list("parents");
    body.parents = parents != nullptr ? read_parents(*parents, body.keys.size(), fields.errors())
                                      : chained_parents(body.keys, std::nullopt);
    body.tier = read_optional_tier(fields, "tier");
  }
  body.wait_ms = read_wait_ms(fields);
  return body;
}

}  // namespace cairn
