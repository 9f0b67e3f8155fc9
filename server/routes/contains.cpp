// Where blocks are, for many keys at once.
#include <algorithm>

#include "server/codec/hot_json.hpp"
#include "server/routes/common.hpp"
#include "server/routes/handlers.hpp"

namespace cairn::routes {
namespace {

// By tier, then for a block that only the shared tier has, and for one that is nowhere.
constexpr std::string_view kLetters = "dpks.";
constexpr std::string_view kBytes("\1\2\3\4\0", 5);
constexpr std::size_t kShared = 3;
constexpr std::size_t kNowhere = 4;

Result<> read_packed(const Call& call, ContainsBody& out) {
  out.clear();
  Query query(call.head.query);
  const auto key_bytes = query.number("key_bytes", {1, kMaxKeyBytes});
  query.require("key_bytes", key_bytes.has_value());
  out.shared = query.flag("shared").value_or(false);
  if (const auto name = query.text("kv_group")) out.kv_group.emplace(*name);
  CAIRN_TRY(query.finish());
  return borrow_keys(call, {.key_bytes = *key_bytes, .max_keys = kMaxContainsKeys}, out.keys);
}

Result<> read_contains(const Call& call, ContainsBody& out) {
  if (is_bytes_type(call.head.content_type)) return read_packed(call, out);
  if (!call.head.query.empty()) CAIRN_TRY(Query(call.head.query).finish());
  return read_hot(call, max_document_values(kMaxContainsKeys),
                  [&out](std::span<const std::byte> body) {
                    return hot_json::read_contains(body, kMaxContainsKeys, out);
                  });
}

// The group that stands for a key in the shared tier: its values have names by group.
KvGroupNumber asked_group(const CacheConfig& config) {
  const auto full = std::ranges::find(config.kv_groups, KvGroupKind::full, &KvGroupConfig::kind);
  if (full == config.kv_groups.end()) return 0;
  return static_cast<KvGroupNumber>(full - config.kv_groups.begin());
}

// `places`: an index of kLetters for each key.
void answer(Reply& reply, const std::vector<std::uint8_t>& places) {
  const std::string_view words = reply.style().form.bytes ? kBytes : kLetters;
  std::string tiers(places.size(), words[kNowhere]);
  for (std::size_t i = 0; i < places.size(); ++i) tiers[i] = words[places[i]];
  if (reply.style().form.bytes) return reply.bytes(std::move(tiers));
  reply.text(200, "{\"tiers\":\"" + tiers + "\"}");
}

}  // namespace

void contains(Service& service, const Call& call, std::shared_ptr<Cache> cache, Reply reply) {
  ContainsBody body;
  if (auto read = read_contains(call, body); !read) return reply.error(read.error());
  std::optional<KvGroupNumber> kv_group;
  if (body.kv_group) {
    const auto named = KvGroupNames(cache->config()).number(*body.kv_group);
    if (!named) return reply.error(named.error());
    kv_group = *named;
  }
  const auto keys = body.keys.views();
  const auto tiers = cache->tiers_of(keys, kv_group);
  std::vector<std::uint8_t> places(keys.size(), kNowhere);
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (tiers[i]) {
      places[i] = static_cast<std::uint8_t>(index_of(*tiers[i]));
    } else {
      missing.push_back(i);
    }
  }
  const auto tier = body.shared && service.shared != nullptr ? service.shared->of(cache) : nullptr;
  if (tier == nullptr || missing.empty()) return answer(reply, places);
  std::vector<BlockKey> asked;
  asked.reserve(missing.size());
  const KvGroupNumber group = kv_group.value_or(asked_group(cache->config()));
  for (const std::size_t i : missing) asked.emplace_back(keys[i].in(group));
  tier->ask(std::move(asked), [reply = std::move(reply), places = std::move(places),
                               missing = std::move(missing)](std::vector<bool> there) mutable {
    for (std::size_t i = 0; i < missing.size(); ++i) {
      if (there[i]) places[missing[i]] = kShared;
    }
    answer(reply, places);
  });
}

}  // namespace cairn::routes
