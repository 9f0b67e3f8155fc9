#include "server/codec/cache_body.hpp"

#include "server/codec/dom_blocks.hpp"
#include "server/codec/fields.hpp"
#include "server/codec/tier_memory_body.hpp"

namespace cairn {
namespace {

constexpr std::array<std::string_view, 2> kLayoutWords = {"fully_contiguous", "layer_separate"};
constexpr std::array<std::string_view, 2> kBlockDimWords = {"first", "second"};
constexpr std::array<std::string_view, 3> kOffloadWords = {"on_evict", "on_commit", "never"};
constexpr std::array<std::string_view, 2> kExportWords = {"handle", "descriptor"};
constexpr std::array<std::string_view, 1> kMemoryKindWords = {"unified"};
constexpr std::array<std::string_view, 1> kStoreWords = {"redis"};
constexpr std::array<std::string_view, 2> kPlacementWords = {"values", "holders"};
constexpr std::array<std::string_view, 3> kRemoteWriteWords = {"on_commit", "on_evict",
                                                               "second_use"};
constexpr std::array<std::string_view, 2> kEvictionWords = {"lru", "class_hazard"};
constexpr std::array<std::string_view, 3> kReactionWords = {"none", "shrink", "callback"};

LayoutConfig read_shape(const json& object, const std::string& path, DecodeErrors& errors) {
  Fields fields(object, path, errors);
  LayoutConfig shape;
  // The layout checks the rules between the fields (products, powers of two): impossible_shape.
  shape.num_layers = fields.number("num_layers", {});
  shape.outer_dim = fields.number("outer_dim", {});
  shape.page_size = fields.number("page_size", {});
  shape.inner_dim = fields.number("inner_dim", {});
  shape.dtype_width_bytes = fields.number("dtype_width_bytes", {});
  shape.alignment = fields.optional_number("alignment", {}).value_or(kDefaultAlignment);
  fields.finish();
  return shape;
}

// Reads how a tier's memory is shared with other processes.
void read_sharing(Fields& fields, Tier tier, TierConfig& config) {
  const json* memory = fields.optional_object("memory");
  if (memory == nullptr) return;
  Fields members(*memory, fields.path_of("memory"), fields.errors());
  if (tier == Tier::device && members.has("kind")) {
    members.word("kind", kMemoryKindWords);
    config.unified = true;
    for (const char* other : {"export", "import"}) {
      if (!members.has(other)) continue;
      fields.errors().add(
          ErrorCode::malformed,
          members.path_of(other) + " is given; it is for memory of another kind than unified");
    }
  } else if (tier == Tier::device && members.has("export")) {
    config.by_descriptor = members.word("export", kExportWords) == 1;
    if (members.has("import")) {
      fields.errors().add(ErrorCode::malformed,
                          members.path_of("export") +
                              " is given; it is for memory of the server's own, not for an import");
    }
  } else if (const json* object = members.object("import")) {
    Fields of_import(*object, members.path_of("import"), fields.errors());
    config.import = read_tier_memory(of_import);
  }
  members.finish();
}

TierConfig read_tier_config(Fields& fields, Tier tier) {
  TierConfig config;
  config.num_blocks = static_cast<std::uint32_t>(fields.number("num_blocks", kAnyU32));
  const auto layout = fields.optional_word("layout", kLayoutWords);
  if (layout.value_or(0) == 1) config.layout = LayoutKind::layer_separate;
  if (fields.has("block_dim") && config.layout != LayoutKind::layer_separate) {
    fields.errors().add(ErrorCode::malformed,
                        fields.path_of("block_dim") + " is given; it is for layer_separate only");
  }
  const auto block_dim = fields.optional_word("block_dim", kBlockDimWords);
  if (block_dim.value_or(0) == 1) config.block_dim = BlockDim::second;
  if (tier != Tier::disk) {
    config.device_id =
        static_cast<int>(fields.optional_number("device_id", {0, INT32_MAX}).value_or(0));
  }
  if (tier == Tier::pinned) config.numa_aware = fields.optional_bool("numa_aware").value_or(false);
  if (tier == Tier::disk) config.path = fields.optional_string("path").value_or("");
  if (tier != Tier::disk) read_sharing(fields, tier, config);
  fields.finish();
  return config;
}

PressureReaction read_reaction(Fields& fields) {
  PressureReaction reaction;
  reaction.kind = static_cast<PressureReaction::Kind>(fields.word("kind", kReactionWords));
  const auto target_use = fields.optional_share("target_use");
  if (reaction.kind == PressureReaction::Kind::shrink && !target_use) {
    fields.errors().add(ErrorCode::missing_field,
                        fields.path_of("target_use") + " is missing; it goes with shrink");
  }
  reaction.target_use = target_use.value_or(0.0);
  fields.finish();
  return reaction;
}

using Pressures = std::array<std::optional<PressureConfig>, kNumTiers>;

Pressures read_pressures(Fields& fields) {
  Pressures pressures;
  const json* object = fields.optional_object("pressure");
  if (object == nullptr) return pressures;
  Fields members(*object, fields.path_of("pressure"), fields.errors());
  for (Tier tier : kTiers) {
    const std::string_view name = kTierWords[index_of(tier)];
    const json* body = members.optional_object(name);
    if (body == nullptr) continue;
    Fields of_tier(*body, members.path_of(name), fields.errors());
    read_pressure(of_tier, pressures[index_of(tier)].emplace());
    of_tier.finish();
  }
  members.finish();
  return pressures;
}

// An empty object sets no limit for the cache.
std::optional<CacheQuota> read_quota(Fields& fields) {
  const json* object = fields.optional_object("quota");
  if (object == nullptr) return std::nullopt;
  Fields members(*object, fields.path_of("quota"), fields.errors());
  CacheQuota quota;
  if (const auto blocks = members.optional_number("max_leased_blocks", {1, UINT32_MAX})) {
    quota.max_leased_blocks = static_cast<std::uint32_t>(*blocks);
  }
  members.finish();
  return quota;
}

std::optional<RemoteTierConfig> read_remote_tier(Fields& fields) {
  const json* object = fields.optional_object("shared");
  if (object == nullptr) return std::nullopt;
  Fields members(*object, fields.path_of("shared"), fields.errors());
  RemoteTierConfig shared;
  members.optional_word("store", kStoreWords);
  shared.placement = static_cast<RemoteTierConfig::Placement>(
      members.optional_word("placement", kPlacementWords).value_or(0));
  shared.write = static_cast<RemoteTierConfig::Write>(
      members.optional_word("write", kRemoteWriteWords).value_or(0));
  shared.name_space = members.optional_string("namespace").value_or("");
  shared.ttl_ms = members.optional_number("ttl_ms", {}).value_or(0);
  members.finish();
  return shared;
}

ordered_json shared_body(const CacheConfig& config) {
  const RemoteTierConfig& shared = *config.shared;
  return {{"store", kStoreWords[0]},
          {"placement", kPlacementWords[static_cast<std::size_t>(shared.placement)]},
          {"write", kRemoteWriteWords[static_cast<std::size_t>(shared.write)]},
          {"namespace", shared.name_space.empty() ? config.name : shared.name_space},
          {"ttl_ms", shared.ttl_ms}};
}

ordered_json shape_body(const LayoutConfig& shape) {
  return {{"num_layers", shape.num_layers},
          {"outer_dim", shape.outer_dim},
          {"page_size", shape.page_size},
          {"inner_dim", shape.inner_dim},
          {"dtype_width_bytes", shape.dtype_width_bytes},
          {"alignment", shape.alignment}};
}

ordered_json tier_body(const CacheConfig& cache, Tier tier) {
  const TierConfig& config = *cache.tiers[index_of(tier)];
  ordered_json body = {{"num_blocks", config.num_blocks}, {"layout", to_string(config.layout)}};
  if (config.layout == LayoutKind::layer_separate) body["block_dim"] = to_string(config.block_dim);
  if (tier != Tier::disk) body["device_id"] = config.device_id;
  if (tier == Tier::pinned) body["numa_aware"] = config.numa_aware;
  if (config.import) body["memory"] = {{"import", tier_memory_body(*config.import)}};
  if (config.by_descriptor) body["memory"] = {{"export", kExportWords[1]}};
  if (config.unified) body["memory"] = {{"kind", kMemoryKindWords[0]}};
  if (tier == Tier::disk) body["path"] = config.path.empty() ? cache.name : config.path;
  return body;
}

ordered_json pressure_body(const PressureConfig& config) {
  ordered_json body = {
      {"elevated", config.elevated}, {"warning", config.warning}, {"critical", config.critical}};
  for (std::size_t i = 0; i < kNumPressureLevels; ++i) {
    const PressureReaction& reaction = config.reactions[i];
    if (reaction.kind == PressureReaction::Kind::none) continue;
    ordered_json member = {{"kind", kReactionWords[static_cast<std::size_t>(reaction.kind)]}};
    if (reaction.kind == PressureReaction::Kind::shrink) member["target_use"] = reaction.target_use;
    body["reactions"][std::string(to_string(static_cast<PressureLevel>(i)))] = std::move(member);
  }
  return body;
}

void add_memory(ordered_json& body, const BlockLayout& layout, std::uint32_t num_blocks) {
  std::uint64_t reserved_bytes = 0;
  ordered_json regions = ordered_json::array();
  for (const RegionView& region : layout.regions()) {
    reserved_bytes += region.size_bytes();
    regions.push_back({{"size_bytes", region.size_bytes()}});
  }
  const Geometry& geometry = layout.geometry();
  // A tier that shrank keeps its addresses but not their pages.
  if (layout.storage_kind() != StorageKind::disk) {
    reserved_bytes = reserved_bytes / layout.config().num_blocks * num_blocks;
  }
  body["reserved_bytes"] = reserved_bytes;
  body["regions"] = std::move(regions);
  body["strides"] = {{"block_bytes", geometry.block_stride_bytes()},
                     {"layer_bytes", geometry.layer_stride_bytes()},
                     {"outer_bytes", geometry.outer_stride_bytes()}};
}

void add_counts(ordered_json& body, const TierStats& stats) {
  ordered_json blocks = ordered_json::object();
  for (std::size_t state = 0; state < kNumSlotStates; ++state) {
    blocks[std::string(to_string(static_cast<SlotState>(state)))] = stats.blocks[state];
  }
  body["capacity_blocks"] = stats.capacity_blocks;
  if (stats.populated_bytes) body["populated_bytes"] = *stats.populated_bytes;
  body["blocks"] = std::move(blocks);
  body["leased_blocks"] = stats.leased_blocks;
  body["hits"] = stats.hit_blocks;
  std::uint64_t evictions = 0;
  for (std::uint64_t count : stats.evictions) evictions += count;
  body["evictions"] = evictions;
  body["pressure"] = to_string(stats.pressure);
}

}  // namespace

void read_pressure(Fields& fields, PressureConfig& out) {
  out.elevated = fields.optional_share("elevated").value_or(out.elevated);
  out.warning = fields.optional_share("warning").value_or(out.warning);
  out.critical = fields.optional_share("critical").value_or(out.critical);
  if (out.elevated > out.warning || out.warning > out.critical) {
    fields.errors().add(ErrorCode::impossible,
                        fields.path_of("elevated") + ", warning and critical must not descend");
  }
  const json* object = fields.optional_object("reactions");
  if (object == nullptr) return;
  Fields reactions(*object, fields.path_of("reactions"), fields.errors());
  // `normal` has no reaction.
  for (std::size_t i = 1; i < kNumPressureLevels; ++i) {
    const std::string_view level = to_string(static_cast<PressureLevel>(i));
    const json* body = reactions.optional_object(level);
    if (body == nullptr) continue;
    Fields members(*body, reactions.path_of(level), fields.errors());
    out.reactions[i] = read_reaction(members);
  }
  reactions.finish();
}

CacheConfig read_cache_fields(Fields& fields, std::string name) {
  CacheConfig config;
  config.name = std::move(name);
  DecodeErrors& errors = fields.errors();
  if (const json* shape = fields.object("layout"))
    config.shape = read_shape(*shape, fields.path_of("layout"), errors);
  if (const json* tiers = fields.object("tiers")) {
    Fields members(*tiers, fields.path_of("tiers"), errors);
    for (Tier tier : kTiers) {
      const json* body = members.optional_object(kTierWords[index_of(tier)]);
      if (body == nullptr) continue;
      Fields tier_fields(*body, members.path_of(kTierWords[index_of(tier)]), errors);
      config.tiers[index_of(tier)] = read_tier_config(tier_fields, tier);
    }
    members.finish();
    if (tiers->empty()) {
      errors.add(ErrorCode::missing_field, "tiers names none of device, pinned, disk");
    }
  }
  if (const auto word = fields.optional_word("eviction", kEvictionWords)) {
    config.eviction = static_cast<EvictionKind>(*word);
  }
  config.offload =
      static_cast<OffloadMode>(fields.optional_word("offload", kOffloadWords).value_or(0));
  config.default_lease_ms = static_cast<std::uint32_t>(
      fields.optional_number("default_lease_ms", {1, UINT32_MAX}).value_or(30'000));
  config.pressure = read_pressures(fields);
  config.quota = read_quota(fields).value_or(CacheQuota{});
  config.shared = read_remote_tier(fields);
  for (Tier tier : kTiers) {
    if (!config.pressure[index_of(tier)] || config.tiers[index_of(tier)]) continue;
    errors.add(ErrorCode::unknown_tier,
               "pressure names " + std::string(to_string(tier)) + ", and tiers does not");
  }
  return config;
}

CacheChange read_cache_change(Fields& fields) {
  CacheChange change;
  if (const auto word = fields.optional_word("offload", kOffloadWords)) {
    change.offload = static_cast<OffloadMode>(*word);
  }
  if (const auto word = fields.optional_word("eviction", kEvictionWords)) {
    change.eviction = static_cast<EvictionKind>(*word);
  }
  if (const auto ms = fields.optional_number("default_lease_ms", {1, UINT32_MAX})) {
    change.default_lease_ms = static_cast<std::uint32_t>(*ms);
  }
  change.pressure = read_pressures(fields);
  change.quota = read_quota(fields);
  if (const json* tiers = fields.optional_object("tiers")) {
    Fields members(*tiers, fields.path_of("tiers"), fields.errors());
    for (Tier tier : kTiers) {
      const std::string_view name = kTierWords[index_of(tier)];
      const json* object = members.optional_object(name);
      if (object == nullptr) continue;
      Fields tier_fields(*object, members.path_of(name), fields.errors());
      change.num_blocks[index_of(tier)] =
          static_cast<std::uint32_t>(tier_fields.number("num_blocks", kAnyU32));
      tier_fields.finish();
    }
    members.finish();
  }
  return change;
}

Result<CacheConfig> read_cache_body(const json& body, const std::string& name) {
  return read_whole(body, [&name](Fields& fields) { return read_cache_fields(fields, name); });
}

ordered_json cache_config_body(const CacheConfig& config) {
  ordered_json tiers = ordered_json::object();
  for (Tier tier : kTiers) {
    if (!config.tiers[index_of(tier)]) continue;
    tiers[std::string(to_string(tier))] = tier_body(config, tier);
  }
  ordered_json body = {{"layout", shape_body(config.shape)},
                       {"tiers", std::move(tiers)},
                       {"eviction", to_string(config.eviction)},
                       {"offload", to_string(config.offload)},
                       {"default_lease_ms", config.default_lease_ms}};
  for (Tier tier : kTiers) {
    const auto& pressure = config.pressure[index_of(tier)];
    if (pressure) body["pressure"][std::string(to_string(tier))] = pressure_body(*pressure);
  }
  if (const auto& blocks = config.quota.max_leased_blocks) {
    body["quota"] = {{"max_leased_blocks", *blocks}};
  }
  if (config.shared) body["shared"] = shared_body(config);
  return body;
}

ordered_json cache_shape(const Cache& cache) {
  ordered_json body = {{"name", cache.config().name}};
  body.update(cache_config_body(cache.config()));
  for (Tier tier : kTiers) {
    if (const BlockLayout* layout = cache.layout(tier)) {
      ordered_json& of_tier = body["tiers"][std::string(to_string(tier))];
      add_memory(of_tier, *layout, cache.config().tiers[index_of(tier)]->num_blocks);
      // The right to read a cache's status does not include opening its memory.
      if (cache.config().tiers[index_of(tier)]->import) {
        of_tier["memory"]["import"].erase("handle");
      }
    }
  }
  body["block_bytes"] = cache.block_bytes();
  return body;
}

ordered_json cache_status(const Cache& cache) {
  ordered_json body = cache_shape(cache);
  const CacheStats stats = cache.stats();
  std::uint64_t hits = 0;
  for (Tier tier : kTiers) {
    const TierStats& tier_stats = stats.tiers[index_of(tier)];
    if (!tier_stats.present) continue;
    add_counts(body["tiers"][std::string(to_string(tier))], tier_stats);
    hits += tier_stats.hit_blocks;
  }
  const EvictionKind in_force =
      stats.follows_lru != 0 ? EvictionKind::lru : cache.config().eviction;
  body["eviction_in_force"] = to_string(in_force);
  body["matches"] = stats.matches;
  body["hits"] = hits;
  body["misses"] = stats.miss_blocks;
  body["leases"] = stats.leases;
  body["lease_expirations"] = stats.lease_expirations;
  body["commits"] = stats.commits;
  body["duplicates"] = stats.duplicates;
  body["metadata_bytes"] = stats.metadata_bytes;
  return body;
}

}  // namespace cairn
