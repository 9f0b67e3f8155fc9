#include "server/codec/cache_body.hpp"

#include "blockmgr/index/config_check.hpp"
#include "server/codec/dom_blocks.hpp"
#include "server/codec/fields.hpp"
#include "server/codec/layout_body.hpp"
#include "server/codec/tier_memory_body.hpp"

namespace cairn {
namespace {

constexpr std::array<std::string_view, 3> kOffloadWords = {"on_evict", "on_commit", "never"};
constexpr std::array<std::string_view, 2> kExportWords = {"handle", "descriptor"};
constexpr std::array<std::string_view, 1> kMemoryKindWords = {"unified"};
constexpr std::array<std::string_view, kNumRemoteStores> kStoreWords = {"redis", "s3"};
constexpr std::array<std::string_view, kNumCodecs> kCodecWords = {"none", "bytes"};
constexpr std::array<std::string_view, 2> kPlacementWords = {"values", "holders"};
constexpr std::array<std::string_view, 3> kRemoteWriteWords = {"on_commit", "on_evict",
                                                               "second_use"};
constexpr std::array<std::string_view, 2> kEvictionWords = {"lru", "class_hazard"};
constexpr std::array<std::string_view, 3> kKvGroupKindWords = {"full", "window", "state"};

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
  // What it must divide is checked with the rest of the shape.
  shape.shards = fields.optional_number("shards", {1, kMaxOuterDim}).value_or(0);
  fields.finish();
  return shape;
}

std::vector<KvGroupConfig> read_kv_groups(const json& list, const std::string& path,
                                          DecodeErrors& errors) {
  std::vector<KvGroupConfig> groups;
  if (list.empty() || list.size() > kMaxKvGroups) {
    errors.add(ErrorCode::out_of_range, path + " has " + std::to_string(list.size()) +
                                            " elements; it takes 1 to " +
                                            std::to_string(kMaxKvGroups));
    return groups;
  }
  for (const json& item : list) {
    Fields fields(item, path + "[" + std::to_string(groups.size()) + "]", errors);
    KvGroupConfig& group = groups.emplace_back();
    group.name = fields.string("name");
    group.kind = static_cast<KvGroupKind>(fields.word("kind", kKvGroupKindWords));
    if (group.kind == KvGroupKind::window) {
      group.window_tokens =
          static_cast<std::uint32_t>(fields.number("window_tokens", {1, UINT32_MAX}));
    } else if (fields.has("window_tokens")) {
      errors.add(ErrorCode::malformed,
                 fields.path_of("window_tokens") + " is given; it is for the kind window only");
    }
    if (const json* shape = fields.object("layout")) {
      group.shape = read_shape(*shape, fields.path_of("layout"), errors);
    }
    fields.finish();
  }
  return groups;
}

// Reads the shape of a cache's blocks: `layout`, or `block_tokens` with `kv_groups`.
void read_shapes(Fields& fields, CacheConfig& config) {
  DecodeErrors& errors = fields.errors();
  if (!fields.has("kv_groups")) {
    if (fields.has("block_tokens")) {
      errors.add(ErrorCode::malformed, "block_tokens is given without kv_groups");
    }
    if (const json* shape = fields.object("layout")) {
      config.shape = read_shape(*shape, fields.path_of("layout"), errors);
    }
    return;
  }
  if (fields.has("layout")) {
    errors.add(ErrorCode::malformed,
               "layout and kv_groups are both given; a cache takes one of them");
    return;
  }
  config.block_tokens =
      static_cast<std::uint32_t>(fields.number("block_tokens", {1, kMaxPageSize}));
  if (const json* list = fields.list("kv_groups")) {
    config.kv_groups = read_kv_groups(*list, fields.path_of("kv_groups"), errors);
  }
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

// Reads num_blocks or size_bytes, whichever is given.
void read_tier_size(Fields& fields, bool has_kv_groups, TierConfig& config) {
  if (fields.has("size_bytes")) {
    config.size_bytes = fields.number("size_bytes", {1, kMaxLayoutBytes});
    if (fields.has("num_blocks")) {
      fields.errors().add(ErrorCode::malformed,
                          fields.path_of("num_blocks") +
                              " and size_bytes are both given; a tier takes one of them");
    }
    return;
  }
  if (has_kv_groups) {
    fields.errors().add(
        fields.has("num_blocks") ? ErrorCode::malformed : ErrorCode::missing_field,
        fields.path_of("size_bytes") + " is missing; with kv_groups, tiers are sized in bytes");
    return;
  }
  config.num_blocks = static_cast<std::uint32_t>(fields.number("num_blocks", kAnyU32));
}

TierConfig read_tier_config(Fields& fields, Tier tier, bool has_kv_groups) {
  TierConfig config;
  read_tier_size(fields, has_kv_groups, config);
  const LayoutWords words = read_layout(fields, LayoutField::optional);
  config.layout = words.layout.value_or(LayoutKind::fully_contiguous);
  config.block_dim = words.block_dim.value_or(BlockDim::first);
  if (tier != Tier::disk) {
    config.device_id =
        static_cast<int>(fields.optional_number("device_id", {0, INT32_MAX}).value_or(0));
  }
  if (tier == Tier::pinned) config.numa_aware = fields.optional_bool("numa_aware").value_or(false);
  if (tier == Tier::disk) {
    config.path = fields.optional_string("path").value_or("");
    config.codec = static_cast<Codec>(fields.optional_word("codec", kCodecWords).value_or(0));
  }
  if (tier != Tier::disk) read_sharing(fields, tier, config);
  fields.finish();
  return config;
}

PressureReaction read_reaction(Fields& fields, PressureOf of) {
  PressureReaction reaction;
  reaction.kind =
      static_cast<PressureReaction::Kind>(fields.word("kind", PressureReaction::kWords));
  if (reaction.kind == PressureReaction::Kind::empty_cache && of != PressureOf::device_tier) {
    fields.errors().add(ErrorCode::impossible, fields.path_of("kind") +
                                                   " is empty_cache; it is for the device tier, " +
                                                   "whose device has a cache of memory");
  }
  if (of == PressureOf::pool) {
    fields.finish();
    return reaction;
  }
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
    read_pressure(of_tier, pressure_of(tier), pressures[index_of(tier)].emplace());
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

struct PinShareFields {
  std::optional<double> max_share = {};
  std::optional<double> max_share_of_token = {};
};
PinShareFields read_pin_shares(Fields& fields) {
  PinShareFields shares;
  const json* object = fields.optional_object("pins");
  if (object == nullptr) return shares;
  Fields members(*object, fields.path_of("pins"), fields.errors());
  shares.max_share = members.optional_share("max_share");
  shares.max_share_of_token = members.optional_share("max_share_of_token");
  members.finish();
  return shares;
}

// The standard way to write a second store is by worth: what was used twice.
RemoteTierConfig read_remote_tier(const json& object, const std::string& path,
                                  RemoteTierConfig::Write standard, DecodeErrors& errors) {
  Fields members(object, path, errors);
  RemoteTierConfig shared;
  shared.store =
      static_cast<RemoteTierConfig::Store>(members.optional_word("store", kStoreWords).value_or(0));
  shared.placement = static_cast<RemoteTierConfig::Placement>(
      members.optional_word("placement", kPlacementWords).value_or(0));
  const auto write = members.optional_word("write", kRemoteWriteWords);
  shared.write = write ? static_cast<RemoteTierConfig::Write>(*write) : standard;
  shared.codec = static_cast<Codec>(members.optional_word("codec", kCodecWords).value_or(0));
  shared.name_space = members.optional_string("namespace").value_or("");
  shared.ttl_ms = members.optional_number("ttl_ms", {}).value_or(0);
  members.finish();
  return shared;
}

// Reads `shared`: a store, or a list of one or two, the near one first.
void read_remote_tiers(Fields& fields, CacheConfig& config) {
  using Write = RemoteTierConfig::Write;
  const json* const given = fields.optional_any("shared");
  if (given == nullptr) return;
  const std::string path = fields.path_of("shared");
  DecodeErrors& errors = fields.errors();
  if (!given->is_array()) {
    if (const json* object = fields.object("shared")) {
      config.shared = read_remote_tier(*object, path, Write::on_commit, errors);
    }
    return;
  }
  if (given->empty() || given->size() > kNumRemoteStores) {
    errors.add(ErrorCode::out_of_range, path + " has " + std::to_string(given->size()) +
                                            " elements; it takes 1 or 2 stores");
    return;
  }
  config.shared = read_remote_tier((*given)[0], path + "[0]", Write::on_commit, errors);
  if (given->size() == 1) return;
  config.shared_far = read_remote_tier((*given)[1], path + "[1]", Write::second_use, errors);
}

ordered_json shared_body(const RemoteTierConfig& shared, const std::string& cache) {
  return {{"store", kStoreWords[static_cast<std::size_t>(shared.store)]},
          {"placement", kPlacementWords[static_cast<std::size_t>(shared.placement)]},
          {"write", kRemoteWriteWords[static_cast<std::size_t>(shared.write)]},
          {"codec", kCodecWords[static_cast<std::size_t>(shared.codec)]},
          {"namespace", shared.name_space.empty() ? cache : shared.name_space},
          {"ttl_ms", shared.ttl_ms}};
}

ordered_json shared_body(const CacheConfig& config) {
  ordered_json near = shared_body(*config.shared, config.name);
  if (!config.shared_far) return near;
  return ordered_json::array({std::move(near), shared_body(*config.shared_far, config.name)});
}

ordered_json shape_body(const LayoutConfig& shape) {
  ordered_json body = {{"num_layers", shape.num_layers},
                       {"outer_dim", shape.outer_dim},
                       {"page_size", shape.page_size},
                       {"inner_dim", shape.inner_dim},
                       {"dtype_width_bytes", shape.dtype_width_bytes},
                       {"alignment", shape.alignment}};
  if (shape.shards > 0) body["shards"] = shape.shards;
  return body;
}

ordered_json kv_groups_body(const CacheConfig& config) {
  ordered_json groups = ordered_json::array();
  for (const KvGroupConfig& group : config.kv_groups) {
    ordered_json body = {{"name", group.name}, {"kind", to_string(group.kind)}};
    if (group.kind == KvGroupKind::window) body["window_tokens"] = group.window_tokens;
    body["layout"] = shape_body(group.shape);
    groups.push_back(std::move(body));
  }
  return groups;
}

ordered_json tier_body(const CacheConfig& cache, Tier tier) {
  const TierConfig& config = *cache.tiers[index_of(tier)];
  ordered_json body = ordered_json::object();
  if (cache.kv_groups.empty()) {
    body["num_blocks"] = config.num_blocks;
  } else {
    body["size_bytes"] = config.num_blocks * slot_sizes(cache, tier).unit_bytes;
  }
  body["layout"] = to_string(config.layout);
  if (config.layout == LayoutKind::layer_separate) body["block_dim"] = to_string(config.block_dim);
  if (tier != Tier::disk) body["device_id"] = config.device_id;
  if (tier == Tier::pinned) body["numa_aware"] = config.numa_aware;
  if (config.import) body["memory"] = {{"import", tier_memory_body(*config.import)}};
  if (config.by_descriptor) body["memory"] = {{"export", kExportWords[1]}};
  if (config.unified) body["memory"] = {{"kind", kMemoryKindWords[0]}};
  if (tier == Tier::disk) {
    body["path"] = config.path.empty() ? cache.name : config.path;
    body["codec"] = kCodecWords[static_cast<std::size_t>(config.codec)];
  }
  return body;
}

ordered_json pressure_body(const PressureConfig& config) {
  ordered_json body = {
      {"elevated", config.elevated}, {"warning", config.warning}, {"critical", config.critical}};
  for (std::size_t i = 0; i < kNumPressureLevels; ++i) {
    const PressureReaction& reaction = config.reactions[i];
    if (reaction.kind == PressureReaction::Kind::none) continue;
    ordered_json member = {
        {"kind", PressureReaction::kWords[static_cast<std::size_t>(reaction.kind)]}};
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

// What each KV group has in a tier.
void add_kv_groups(ordered_json& body, const CacheConfig& config, const TierStats& stats) {
  for (std::size_t i = 0; i < stats.kv_groups.size(); ++i) {
    const KvGroupStats& group = stats.kv_groups[i];
    body["kv_groups"][group.name] = {{"block_bytes", block_bytes(config.kv_groups[i].shape)},
                                     {"blocks", group.blocks},
                                     {"bytes", group.bytes}};
  }
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

void read_pressure(Fields& fields, PressureOf of, PressureConfig& out) {
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
  for (std::size_t i = 0; i < kNumPressureLevels; ++i) {
    const std::string_view level = to_string(static_cast<PressureLevel>(i));
    const json* body = reactions.optional_object(level);
    if (body == nullptr) continue;
    Fields members(*body, reactions.path_of(level), fields.errors());
    out.reactions[i] = read_reaction(members, of);
  }
  reactions.finish();
}

CacheConfig read_cache_fields(Fields& fields, std::string name) {
  CacheConfig config;
  config.name = std::move(name);
  DecodeErrors& errors = fields.errors();
  read_shapes(fields, config);
  if (const json* tiers = fields.object("tiers")) {
    Fields members(*tiers, fields.path_of("tiers"), errors);
    for (Tier tier : kTiers) {
      const json* body = members.optional_object(kTierWords[index_of(tier)]);
      if (body == nullptr) continue;
      Fields tier_fields(*body, members.path_of(kTierWords[index_of(tier)]), errors);
      config.tiers[index_of(tier)] = read_tier_config(tier_fields, tier, !config.kv_groups.empty());
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
  const PinShareFields pins = read_pin_shares(fields);
  config.pins.max_share = pins.max_share.value_or(config.pins.max_share);
  config.pins.max_share_of_token = pins.max_share_of_token.value_or(config.pins.max_share_of_token);
  read_remote_tiers(fields, config);
  for (Tier tier : kTiers) {
    if (!config.pressure[index_of(tier)] || config.tiers[index_of(tier)]) continue;
    errors.add(ErrorCode::unknown_tier,
               "pressure names " + std::string(to_string(tier)) + ", and tiers does not");
  }
  return with_slots(std::move(config));
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
  const PinShareFields pins = read_pin_shares(fields);
  change.max_pin_share = pins.max_share;
  change.max_pin_share_of_token = pins.max_share_of_token;
  if (const json* tiers = fields.optional_object("tiers")) {
    Fields members(*tiers, fields.path_of("tiers"), fields.errors());
    for (Tier tier : kTiers) {
      const std::string_view name = kTierWords[index_of(tier)];
      const json* object = members.optional_object(name);
      if (object == nullptr) continue;
      Fields tier_fields(*object, members.path_of(name), fields.errors());
      if (tier_fields.has("size_bytes") && !tier_fields.has("num_blocks")) {
        change.size_bytes[index_of(tier)] = tier_fields.number("size_bytes", {1, kMaxLayoutBytes});
      } else {
        change.num_blocks[index_of(tier)] =
            static_cast<std::uint32_t>(tier_fields.number("num_blocks", kAnyU32));
      }
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
  ordered_json body = ordered_json::object();
  if (config.kv_groups.empty()) {
    body["layout"] = shape_body(config.shape);
  } else {
    body["block_tokens"] = config.block_tokens;
    body["kv_groups"] = kv_groups_body(config);
  }
  body["tiers"] = std::move(tiers);
  body["eviction"] = to_string(config.eviction);
  body["offload"] = to_string(config.offload);
  body["default_lease_ms"] = config.default_lease_ms;
  for (Tier tier : kTiers) {
    const auto& pressure = config.pressure[index_of(tier)];
    if (pressure) body["pressure"][std::string(to_string(tier))] = pressure_body(*pressure);
  }
  if (const auto& blocks = config.quota.max_leased_blocks) {
    body["quota"] = {{"max_leased_blocks", *blocks}};
  }
  body["pins"] = {{"max_share", config.pins.max_share},
                  {"max_share_of_token", config.pins.max_share_of_token}};
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
  body["block_bytes"] = block_bytes(cache.config().shape);
  return body;
}

ordered_json cache_status(const Cache& cache) {
  ordered_json body = cache_shape(cache);
  const CacheStats stats = cache.stats();
  std::uint64_t hits = 0;
  for (Tier tier : kTiers) {
    const TierStats& tier_stats = stats.tiers[index_of(tier)];
    if (!tier_stats.present) continue;
    ordered_json& of_tier = body["tiers"][std::string(to_string(tier))];
    add_counts(of_tier, tier_stats);
    add_kv_groups(of_tier, cache.config(), tier_stats);
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
  ordered_json& prefetched = body["prefetched"];
  for (std::size_t i = 0; i < kNumPrefetchResults; ++i) {
    prefetched[std::string(to_string(static_cast<PrefetchResult>(i)))] = stats.prefetched[i];
  }
  return body;
}

}  // namespace cairn
