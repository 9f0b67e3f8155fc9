#include "blockmgr/index/config_check.hpp"

#include <algorithm>
#include <cctype>
#include <string>

#include "base/checked.hpp"
#include "base/hash.hpp"
#include "blockmgr/index/page_room.hpp"
#include "blockmgr/index/slot_ref.hpp"
#include "transport/io/slot_header.hpp"

namespace cairn {
namespace {

constexpr std::size_t kMaxNameBytes = 64;
constexpr std::uint64_t kMaxRemoteTtlMs = 366ull * 24 * 3'600'000;  // one year

Error out_of_range(std::string detail) { return {ErrorCode::out_of_range, std::move(detail)}; }

Result<> check_name(std::string_view what, const std::string& name) {
  const bool fine = !name.empty() && name.size() <= kMaxNameBytes && name != "." && name != ".." &&
                    std::all_of(name.begin(), name.end(), [](unsigned char c) {
                      return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
                    });
  if (fine) return {};
  return out_of_range(std::string(what) +
                      " is 1 to 64 letters, digits, '.', '_' or '-', and not . or ..");
}

Result<> check_pin_share(const char* what, double share) {
  if (share >= 0 && share <= kMaxPinShare) return {};
  return out_of_range(std::string(what) + " is not a share of 0 to 0.9");
}

// With less, the server would re-register every block all the time.
constexpr std::uint64_t kMinHolderTtlMs = 1'000;

Result<> check_holders(const RemoteTierConfig& shared, const BlockManagerOptions& options) {
  if (shared.codec != Codec::none) {
    return Error{ErrorCode::impossible,
                 "shared.codec is given, which requires placement values: with holders, blocks are "
                 "read from other servers' memory"};
  }
  if (!options.is_advertised) {
    return Error{ErrorCode::impossible,
                 "shared.placement is holders, but other servers do not know this server's URL: "
                 "set shared.advertise"};
  }
  if (shared.write == RemoteTierConfig::Write::on_evict) {
    return Error{ErrorCode::impossible,
                 "shared.write is on_evict, which requires placement values: a server cannot serve "
                 "a block that it has evicted"};
  }
  if (shared.ttl_ms > 0 && shared.ttl_ms < kMinHolderTtlMs) {
    return out_of_range("shared.ttl_ms is " + std::to_string(shared.ttl_ms) +
                        "; with placement holders it must be 0 or at least " +
                        std::to_string(kMinHolderTtlMs));
  }
  return {};
}

Result<> check_remote_tier(const RemoteTierConfig& shared, const BlockManagerOptions& options) {
  if (!options.has_remote_store[static_cast<std::size_t>(shared.store)]) {
    return Error{ErrorCode::impossible,
                 shared.store == RemoteTierConfig::Store::s3
                     ? "shared.store is s3, but this server has no bucket: set shared.s3.bucket"
                     : "shared is given, but this server has no shared store: set shared.url "
                       "(--shared)"};
  }
  if (shared.store == RemoteTierConfig::Store::s3 &&
      shared.placement == RemoteTierConfig::Placement::holders) {
    return Error{ErrorCode::impossible, "shared.placement is holders, which s3 does not have"};
  }
  if (shared.placement == RemoteTierConfig::Placement::holders)
    CAIRN_TRY(check_holders(shared, options));
  if (!shared.name_space.empty()) CAIRN_TRY(check_name("shared.namespace", shared.name_space));
  if (shared.ttl_ms > kMaxRemoteTtlMs) {
    return out_of_range("shared.ttl_ms is " + std::to_string(shared.ttl_ms) + ", not 0 to " +
                        std::to_string(kMaxRemoteTtlMs));
  }
  return {};
}

Result<> check_far_tier(const RemoteTierConfig& near, const RemoteTierConfig& far,
                        const BlockManagerOptions& options) {
  const auto impossible = [](const char* why) {
    return Error{ErrorCode::impossible, std::string("shared has two stores, and ") + why};
  };
  CAIRN_TRY(check_remote_tier(far, options));
  if (near.store == far.store) return impossible("both are the same");
  if (near.placement == RemoteTierConfig::Placement::holders ||
      far.placement == RemoteTierConfig::Placement::holders) {
    return impossible("one has the placement holders; both need values");
  }
  if (near.name_space != far.name_space) return impossible("their namespaces differ");
  if (near.write == RemoteTierConfig::Write::on_evict &&
      far.write == RemoteTierConfig::Write::on_evict) {
    return impossible("both are written on_evict; one of them can be");
  }
  return {};
}

// Without shards the outer dimension holds keys and values.
constexpr std::uint64_t kMaxWholeOuterDim = 2;

Result<> check_outers(const LayoutConfig& shape) {
  if (shape.shards > 0 && shape.outer_dim % shape.shards != 0) {
    return Error{ErrorCode::impossible_shape, "shards is " + std::to_string(shape.shards) +
                                                  " and must be a divisor of outer_dim, which is " +
                                                  std::to_string(shape.outer_dim)};
  }
  if (shape.shards > 0 || shape.outer_dim <= kMaxWholeOuterDim) return {};
  return Error{ErrorCode::impossible_shape,
               "outer_dim is " + std::to_string(shape.outer_dim) + " and must be 1 to " +
                   std::to_string(kMaxWholeOuterDim) + ", or with shards up to " +
                   std::to_string(kMaxOuterDim)};
}

// Checks that the groups fit together. Their shapes are checked with a tier's number of blocks.
Result<> check_kv_groups(const CacheConfig& config) {
  const auto& groups = config.kv_groups;
  if (groups.size() > kMaxKvGroups) {
    return out_of_range("kv_groups has " + std::to_string(groups.size()) + " elements, not 1 to " +
                        std::to_string(kMaxKvGroups));
  }
  if (config.block_tokens < 1 || config.block_tokens > kMaxPageSize) {
    return out_of_range("block_tokens is " + std::to_string(config.block_tokens) + ", not 1 to " +
                        std::to_string(kMaxPageSize));
  }
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const KvGroupConfig& group = groups[i];
    const std::string field = "kv_groups[" + std::to_string(i) + "]";
    CAIRN_TRY(check_name(field + ".name", group.name));
    const auto same = std::ranges::find(groups, group.name, &KvGroupConfig::name);
    if (same != groups.begin() + static_cast<std::ptrdiff_t>(i)) {
      return Error{ErrorCode::impossible,
                   field + ".name is " + group.name + ", as that of another group"};
    }
    LayoutConfig one = group.shape;
    one.num_blocks = 1;
    if (const auto valid = validate(one); !valid) {
      return Error{valid.error().code, field + ".layout: " + valid.error().detail};
    }
    if (const auto valid = check_outers(one); !valid) {
      return Error{valid.error().code, field + ".layout: " + valid.error().detail};
    }
    if (group.kind == KvGroupKind::state && one.shards > 0) {
      return Error{
          ErrorCode::impossible_shape,
          field + ".layout.shards is " + std::to_string(one.shards) + "; a state is written whole"};
    }
    if ((group.kind == KvGroupKind::window) != (group.window_tokens > 0)) {
      return Error{ErrorCode::impossible, field + ".window_tokens is " +
                                              std::to_string(group.window_tokens) +
                                              "; a window has 1 or more, other groups have none"};
    }
    const std::uint64_t page_size = group.shape.page_size;
    if (group.kind == KvGroupKind::state && page_size != 1) {
      return Error{ErrorCode::impossible_shape,
                   field + ".layout.page_size is " + std::to_string(page_size) +
                       "; the block of a state is one state, so it is 1"};
    }
    if (group.kind != KvGroupKind::state && page_size % config.block_tokens != 0) {
      return Error{ErrorCode::impossible_shape, field + ".layout.page_size is " +
                                                    std::to_string(page_size) +
                                                    ", not a multiple of block_tokens, which is " +
                                                    std::to_string(config.block_tokens)};
    }
  }
  if (std::ranges::all_of(
          groups, [](KvGroupKind kind) { return kind == KvGroupKind::window; },
          &KvGroupConfig::kind)) {
    return Error{ErrorCode::impossible,
                 "kv_groups has windows only; at least one group is full or state"};
  }
  for (Tier tier : kTiers) {
    const auto& wanted = config.tiers[index_of(tier)];
    if (!wanted) continue;
    const std::string field = "tiers." + std::string(to_string(tier));
    if (wanted->layout != LayoutKind::fully_contiguous) {
      return Error{ErrorCode::impossible, field +
                                              ".layout is layer_separate; a tier that KV groups "
                                              "share is fully_contiguous"};
    }
    if (wanted->import) {
      return Error{ErrorCode::impossible,
                   field +
                       ".memory.import is given; a tier that KV groups share has memory of the "
                       "server's own"};
    }
  }
  if (config.shared && config.shared->placement == RemoteTierConfig::Placement::holders) {
    return Error{ErrorCode::impossible,
                 "shared.placement is holders; that of a cache with kv_groups is values"};
  }
  return {};
}

}  // namespace

std::uint64_t slot_bytes(const LayoutConfig& shape, Tier tier) {
  if (tier == Tier::disk) {
    return checked_align_up(block_bytes(shape) + kSlotHeaderBytes, kSlotHeaderBytes).value();
  }
  return checked_align_up(block_bytes(shape), shape.alignment).value();
}

std::uint64_t shapes_hash(const CacheConfig& config) {
  if (config.kv_groups.empty()) return 0;
  std::string text = std::to_string(config.block_tokens);
  for (const KvGroupConfig& group : config.kv_groups) {
    const LayoutConfig& shape = group.shape;
    text.append(" ").append(group.name).append(" ").append(to_string(group.kind));
    for (const std::uint64_t number :
         {std::uint64_t{group.window_tokens}, shape.num_layers, shape.outer_dim, shape.page_size,
          shape.inner_dim, shape.dtype_width_bytes}) {
      text.append(" ").append(std::to_string(number));
    }
  }
  return std::max<std::uint64_t>(1, hash_bytes(std::as_bytes(std::span(text)), 0));
}

bool same_shapes(const CacheConfig& a, const CacheConfig& b) {
  if (a.kv_groups.empty() && b.kv_groups.empty()) return same_shape(a.shape, b.shape);
  return a.block_tokens == b.block_tokens &&
         std::ranges::equal(
             a.kv_groups, b.kv_groups, [](const KvGroupConfig& x, const KvGroupConfig& y) {
               return x.name == y.name && x.kind == y.kind && x.window_tokens == y.window_tokens &&
                      same_shape(x.shape, y.shape);
             });
}

namespace {

// Copies are fastest between addresses that are multiples of this.
constexpr std::uint64_t kUnitAlignment = 64;

std::uint64_t alignment_of(const CacheConfig& config) {
  std::uint64_t alignment = config.shape.alignment;
  for (const KvGroupConfig& group : config.kv_groups) {
    alignment = std::max(alignment, group.shape.alignment);
  }
  return alignment;
}

LayoutConfig aligned(LayoutConfig shape, const CacheConfig& config) {
  shape.alignment = alignment_of(config);
  return shape;
}

LayoutConfig unit_shape(const CacheConfig& config, Tier tier, std::uint64_t unit_bytes) {
  for (const KvGroupConfig& group : config.kv_groups) {
    const LayoutConfig shape = aligned(group.shape, config);
    if (slot_bytes(shape, tier) == unit_bytes) return shape;
  }
  const std::uint64_t header_bytes = tier == Tier::disk ? kSlotHeaderBytes : 0;
  return {.num_layers = 1,
          .outer_dim = 1,
          .page_size = kUnitAlignment,
          .inner_dim = (unit_bytes - header_bytes) / kUnitAlignment,
          .dtype_width_bytes = 1,
          .alignment = alignment_of(config)};
}

}  // namespace

SlotSizes slot_sizes(const CacheConfig& config, Tier tier) {
  if (config.kv_groups.empty()) return {.unit_bytes = slot_bytes(config.shape, tier)};
  std::vector<std::uint64_t> block_bytes;
  for (const KvGroupConfig& group : config.kv_groups) {
    block_bytes.push_back(slot_bytes(aligned(group.shape, config), tier));
  }
  return choose_slot_sizes(block_bytes, tier == Tier::disk
                                            ? kSlotHeaderBytes
                                            : std::max(kUnitAlignment, alignment_of(config)));
}

LayoutConfig tier_shape(const CacheConfig& config, Tier tier) {
  LayoutConfig shape = config.shape;
  if (!config.kv_groups.empty()) {
    const SlotSizes sizes = slot_sizes(config, tier);
    shape = sizes.are_several() ? unit_shape(config, tier, sizes.unit_bytes)
                                : aligned(config.shape, config);
  }
  shape.shards = 0;  // they change no place, and a slot file's label does not keep them
  shape.num_blocks = slots_in(config, tier);
  return shape;
}

std::uint32_t slots_a_block(const TierConfig& tier) {
  return tier.codec == Codec::none ? 1 : PageRoom::kSlotsARoom;
}

std::uint32_t slots_in(const CacheConfig& config, Tier tier) {
  const auto& wanted = config.tiers[index_of(tier)];
  if (!wanted) return 0;
  const std::uint32_t slots = slots_a_block(*wanted);
  // Twice kMaxSlots is refused as well.
  return slots == 1 ? wanted->num_blocks : std::min(wanted->num_blocks, kMaxSlots) * slots;
}

std::uint32_t policy_blocks(const CacheConfig& config) {
  const auto& groups = config.kv_groups;
  const auto full = std::ranges::find(groups, KvGroupKind::full, &KvGroupConfig::kind);
  if (full == groups.end()) return 0;
  const auto keys_of = [&](const KvGroupConfig& group) {
    return group.kind == KvGroupKind::state ? 1 : group.shape.page_size / config.block_tokens;
  };
  const std::uint64_t layer_bytes =
      block_bytes(full->shape) / full->shape.num_layers / keys_of(*full);
  std::uint64_t key_bytes = 0;  // if each layer were full
  for (const KvGroupConfig& group : groups) {
    key_bytes += group.kind == KvGroupKind::state ? group.shape.num_layers * layer_bytes
                                                  : block_bytes(group.shape) / keys_of(group);
  }
  std::uint64_t bytes = 0;
  for (const Tier tier : kTiers) {
    const auto& made = config.tiers[index_of(tier)];
    if (made) bytes += made->num_blocks * slot_sizes(config, tier).unit_bytes;
  }
  // Windows and states take less than full layers, so more keys fit than if each layer were full.
  // On two traces (docs/design/kv-groups.md) 1 to 2 times as many differ by 0.5 points, and 0.7 or
  // 6 times lose up to 1.5.
  return static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(bytes / key_bytes * 3 / 2, 1, kMaxSlots));
}

std::uint32_t different_blocks(const CacheConfig& config) {
  std::uint32_t sum = 0;
  std::uint32_t most = 0;
  for (const auto& tier : config.tiers) {
    if (!tier) continue;
    sum += tier->num_blocks;
    most = std::max(most, tier->num_blocks);
  }
  return config.offload == OffloadMode::on_commit ? most : sum;
}

Result<> check_config(const CacheConfig& config, const BlockManagerOptions& options) {
  CAIRN_TRY(check_name("a cache's name", config.name));
  if (config.shared) CAIRN_TRY(check_remote_tier(*config.shared, options));
  if (config.shared_far) {
    CAIRN_TRY(check_far_tier(*config.shared, *config.shared_far, options));
  }
  if (config.default_lease_ms < 1) return out_of_range("default_lease_ms is 0, not 1 or more");
  CAIRN_TRY(check_pin_share("pins.max_share", config.pins.max_share));
  CAIRN_TRY(check_pin_share("pins.max_share_of_token", config.pins.max_share_of_token));
  CAIRN_TRY(config.kv_groups.empty() ? check_outers(config.shape) : check_kv_groups(config));
  std::uint64_t slots = 0;
  bool any = false;
  for (Tier tier : kTiers) {
    if (!config.tiers[index_of(tier)]) continue;
    any = true;
    if (const std::uint64_t size_bytes = config.tiers[index_of(tier)]->size_bytes; size_bytes > 0) {
      LayoutConfig one = config.shape;
      one.num_blocks = 1;
      CAIRN_TRY(validate(one));
      const SlotSizes sizes = slot_sizes(config, tier);
      return Error{ErrorCode::impossible_shape,
                   "tiers." + std::string(to_string(tier)) + ".size_bytes is " +
                       std::to_string(size_bytes) + ", less than the " +
                       std::to_string(sizes.unit_bytes * sizes.slab_units) +
                       (sizes.are_several() ? " bytes of a slab" : " bytes that one block takes")};
    }
    slots += slots_in(config, tier);
    CAIRN_TRY(validate(tier_shape(config, tier)));
  }
  if (!any) return Error{ErrorCode::impossible_shape, "a cache has at least one tier"};
  if (slots > kMaxSlots) {
    return Error{ErrorCode::impossible_shape, "the tiers have " + std::to_string(slots) +
                                                  " blocks together, not up to " +
                                                  std::to_string(kMaxSlots)};
  }
  return {};
}

const PressureConfig& pressure_of(const CacheConfig& config, Tier tier,
                                  const BlockManagerOptions& options) {
  const auto& own = config.pressure[index_of(tier)];
  return own ? *own : options.pressure[index_of(tier)];
}

Result<CacheConfig> changed(CacheConfig config, const CacheChange& change) {
  config.offload = change.offload.value_or(config.offload);
  config.eviction = change.eviction.value_or(config.eviction);
  config.default_lease_ms = change.default_lease_ms.value_or(config.default_lease_ms);
  config.quota = change.quota.value_or(config.quota);
  config.pins.max_share = change.max_pin_share.value_or(config.pins.max_share);
  config.pins.max_share_of_token =
      change.max_pin_share_of_token.value_or(config.pins.max_share_of_token);
  for (Tier tier : kTiers) {
    const std::size_t i = index_of(tier);
    const std::string name(to_string(tier));
    if (!change.pressure[i] && !change.num_blocks[i] && !change.size_bytes[i]) continue;
    if (!config.tiers[i]) {
      return Error{ErrorCode::unknown_tier, "cache " + config.name + " has no tier " + name};
    }
    if ((change.num_blocks[i] || change.size_bytes[i]) && tier == Tier::device) {
      return Error{ErrorCode::impossible,
                   "tiers.device is named, but only pinned and disk tiers can be resized"};
    }
    if (change.pressure[i]) config.pressure[i] = change.pressure[i];
    if (change.num_blocks[i]) config.tiers[i]->num_blocks = *change.num_blocks[i];
    if (change.size_bytes[i]) config.tiers[i]->size_bytes = *change.size_bytes[i];
  }
  return filled_in(std::move(config));
}

CacheConfig filled_in(CacheConfig config) {
  auto& disk = config.tiers[index_of(Tier::disk)];
  if (disk && disk->path.empty()) disk->path = config.name;
  return with_slots(std::move(config));
}

CacheConfig with_slots(CacheConfig config) {
  // check_config() says why a shape is invalid.
  const auto is_valid = [](LayoutConfig shape) {
    shape.num_blocks = 1;
    return validate(shape).has_value();
  };
  for (const KvGroupConfig& group : config.kv_groups) {
    if (!is_valid(group.shape)) return config;
    if (block_bytes(group.shape) > block_bytes(config.shape)) config.shape = group.shape;
  }
  if (!is_valid(config.shape)) return config;
  for (Tier tier : kTiers) {
    auto& wanted = config.tiers[index_of(tier)];
    if (!wanted) continue;
    const SlotSizes sizes = slot_sizes(config, tier);
    wanted->num_blocks -= wanted->num_blocks % sizes.slab_units;
    if (wanted->size_bytes == 0) continue;
    const std::uint64_t slabs = wanted->size_bytes / (sizes.unit_bytes * sizes.slab_units);
    if (slabs == 0) continue;
    // One slab too many is refused by its number.
    const std::uint64_t most = kMaxSlots / sizes.slab_units + 1;
    wanted->num_blocks = static_cast<std::uint32_t>(std::min(slabs, most) * sizes.slab_units);
    wanted->size_bytes = 0;
  }
  return config;
}

}  // namespace cairn
