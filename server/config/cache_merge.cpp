#include "server/config/cache_merge.hpp"

#include <algorithm>
#include <set>
#include <string_view>

#include "blockmgr/index/config_check.hpp"
#include "server/codec/cache_body.hpp"

namespace cairn {
namespace {

// How many levels of a member are merged part by part. Deeper values are taken as a whole.
int depth_of(std::string_view member) {
  if (member == "tiers") return 2;
  return member == "pressure" || member == "pins" ? 1 : 0;
}

// Null if missing.
json member_of(const json& object, const std::string& name) {
  const auto at = object.find(name);
  return at == object.end() ? json() : *at;
}

json merged(const json& had, const json& before, const json& now, int depth);

template <class DepthOf>
json merged_members(const json& had, const json& before, const json& now, DepthOf depth) {
  std::set<std::string> names;
  for (const json* from : {&had, &now}) {
    for (const auto& [name, value] : from->items()) names.insert(name);
  }
  json result = json::object();
  for (const std::string& name : names) {
    json value =
        merged(member_of(had, name), member_of(before, name), member_of(now, name), depth(name));
    if (!value.is_null()) result[name] = std::move(value);
  }
  return result;
}

json merged(const json& had, const json& before, const json& now, int depth) {
  if (now == before) return had;
  if (depth == 0 || !had.is_object() || !before.is_object() || !now.is_object()) return now;
  return merged_members(had, before, now, [depth](const std::string&) { return depth - 1; });
}

std::string text_at(const json& body, const json::json_pointer& at) {
  return body.is_object() && body.contains(at) ? body[at].dump() : "left out";
}

// Describes where `is` differs from `other`, if `other` also differs from `before`.
std::vector<std::string> differences(const json& is, const json& other, const json& before) {
  std::vector<std::string> all;
  for (const json& step : json::diff(other, is)) {
    const auto path = step.at("path").get<std::string>();
    const json::json_pointer at(path);
    const std::string had = text_at(other, at);
    if (had == text_at(before, at)) continue;
    std::string name = path.substr(1);
    std::ranges::replace(name, '/', '.');
    all.push_back(name + " is " + text_at(is, at) + ", not " + had);
  }
  return all;
}

// Guesses the configuration of that time. Values that can be changed at run time are those of
// `now`, so they count as changed. The others are those of `had`, so a difference counts as an
// edit.
json without_changes(const json& had, const json& now) {
  json before = had;
  for (const char* name :
       {"offload", "eviction", "default_lease_ms", "pressure", "quota", "pins"}) {
    before[name] = member_of(now, name);
    if (before[name].is_null()) before.erase(name);
  }
  json& tiers = before["tiers"];
  const json now_tiers = member_of(now, "tiers");
  for (auto tier = tiers.begin(); tier != tiers.end(); ++tier) {
    const json of_tier = member_of(now_tiers, tier.key());
    if (!of_tier.is_object()) continue;
    for (const char* size : {"num_blocks", "size_bytes"}) {
      tier.value()[size] = member_of(of_tier, size);
      if (tier.value()[size].is_null()) tier.value().erase(size);
    }
  }
  return before;
}

}  // namespace

MergedCache merge_cache(const CacheVersions& versions) {
  const json had = cache_config_body(filled_in(versions.remembered));
  const json now = cache_config_body(filled_in(versions.wanted));
  const json before = versions.configured ? *versions.configured : without_changes(had, now);
  const json body = merged_members(had, before, now, depth_of);
  auto cache = read_cache_body(body, versions.wanted.name);
  // The merged cache is impossible: use the configuration.
  if (!cache) return {.cache = versions.wanted, .edited = differences(now, had, before)};
  return {.cache = std::move(*cache),
          .changed = differences(body, now, json()),
          .edited = differences(body, had, before)};
}

}  // namespace cairn
