#include "server/codec/kv_group_names.hpp"

#include <algorithm>
#include <string>

namespace cairn {
namespace {

constexpr std::string_view kField = "kv_group";
constexpr std::string_view kDefault = "default";

template <class Reader>
KvGroupNumber one_group(const Result<KvGroupNumber>& group, Reader&& refuse) {
  if (group) return *group;
  refuse(group.error());
  return 0;
}

}  // namespace

std::string_view KvGroupNames::name(KvGroupNumber group) const {
  return are_shown() ? std::string_view(config_->kv_groups[group].name) : kDefault;
}

Result<KvGroupNumber> KvGroupNames::number(std::string_view name) const {
  if (!are_shown() && name == kDefault) return KvGroupNumber{0};
  const auto& groups = config_->kv_groups;
  const auto at = std::ranges::find(groups, name, &KvGroupConfig::name);
  if (at != groups.end()) return static_cast<KvGroupNumber>(at - groups.begin());
  std::string known = are_shown() ? "" : std::string(kDefault);
  for (const KvGroupConfig& group : groups) known += (known.empty() ? "" : ", ") + group.name;
  return Error{ErrorCode::unknown_kv_group, "cache '" + config_->name + "' has no KV group '" +
                                                std::string(name.substr(0, 64)) + "'; it has " +
                                                known};
}

Result<KvGroupNumber> KvGroupNames::unnamed() const {
  if (!are_shown()) return KvGroupNumber{0};
  return number(kDefault);
}

std::optional<KvGroupNumber> read_kv_group(Query& query, const KvGroupNames& groups) {
  const auto name = query.text(kField);
  if (!name) return std::nullopt;
  return one_group(groups.number(*name),
                   [&](const Error& error) { query.refuse(error.code, error.detail); });
}

std::optional<KvGroupNumber> read_kv_group(Fields& fields, const KvGroupNames& groups) {
  const auto name = fields.optional_string(kField);
  if (!name) return std::nullopt;
  return one_group(groups.number(*name),
                   [&](const Error& error) { fields.errors().add(error.code, error.detail); });
}

KvGroupNumber read_one_kv_group(Query& query, const KvGroupNames& groups) {
  if (const auto named = read_kv_group(query, groups)) return *named;
  return one_group(groups.unnamed(),
                   [&](const Error& error) { query.refuse(error.code, error.detail); });
}

KvGroupNumber read_one_kv_group(Fields& fields, const KvGroupNames& groups) {
  if (const auto named = read_kv_group(fields, groups)) return *named;
  return one_group(groups.unnamed(),
                   [&](const Error& error) { fields.errors().add(error.code, error.detail); });
}

std::vector<BlockKey> in_group(std::vector<BlockKey> keys, KvGroupNumber group) {
  if (group == 0) return keys;
  for (BlockKey& key : keys) key = in_group(key, group);
  return keys;
}

}  // namespace cairn
