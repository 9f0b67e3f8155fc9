#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "blockmgr/cache/cache.hpp"
#include "server/codec/fields.hpp"
#include "server/codec/query.hpp"

namespace cairn {

// The KV groups of a cache by their names. A cache of one group has the group `default`.
class KvGroupNames {
 public:
  // Borrows the configuration.
  explicit KvGroupNames(const CacheConfig& config) : config_(&config) {}

  // Whether answers name the group of each block: the cache was made with kv_groups.
  bool are_shown() const { return !config_->kv_groups.empty(); }
  std::string_view name(KvGroupNumber group) const;
  // Error: unknown_kv_group.
  Result<KvGroupNumber> number(std::string_view name) const;
  // The group that a request means if it names none: `default`. Error: unknown_kv_group if the
  // cache has no group of that name.
  Result<KvGroupNumber> unnamed() const;
  Result<KvGroupNumber> number_or_unnamed(std::optional<std::string_view> name) const {
    return name ? number(*name) : unnamed();
  }

 private:
  const CacheConfig* config_;
};

// Reads the parameter or field `kv_group`; nullopt if it is left out. An unknown group is an error
// of the query or the fields.
std::optional<KvGroupNumber> read_kv_group(Query& query, const KvGroupNames& groups);
std::optional<KvGroupNumber> read_kv_group(Fields& fields, const KvGroupNames& groups);
// The same, where a request means one group.
KvGroupNumber read_one_kv_group(Query& query, const KvGroupNames& groups);
KvGroupNumber read_one_kv_group(Fields& fields, const KvGroupNames& groups);

inline BlockKey in_group(const BlockKey& key, KvGroupNumber group) {
  return BlockKey(key.view().in(group));
}
std::vector<BlockKey> in_group(std::vector<BlockKey> keys, KvGroupNumber group);

}  // namespace cairn
