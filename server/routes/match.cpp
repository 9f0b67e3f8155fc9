#include <algorithm>

#include "blockmgr/cache/held_lease.hpp"
#include "server/codec/answers.hpp"
#include "server/codec/hot_json.hpp"
#include "server/codec/reuse_hint_body.hpp"
#include "server/codec/token_keys.hpp"
#include "server/routes/common.hpp"
#include "server/routes/handlers.hpp"

namespace cairn::routes {
namespace {

// Kept between requests, so that a match allocates only its response.
struct Scratch {
  MatchBody body;
  MatchResult result;

  // Call after each request: the thread may not get another one for long.
  void clear() {
    body.clear();
    clear_kept(result.blocks);
  }
};

Scratch& scratch_of_thread() {
  thread_local Scratch scratch;
  return scratch;
}

// Reads keys end to end, without JSON or hex.
Result<> read_packed(const Service& service, const Call& call, MatchBody& out) {
  out.clear();
  Query query(call.head.query);
  const auto key_bytes = query.number("key_bytes", {1, kMaxKeyBytes});
  query.require("key_bytes", key_bytes.has_value());
  if (const auto lease_ms = query.number("lease_ms", kAnyU32)) {
    out.lease_ms = static_cast<std::uint32_t>(*lease_ms);
  }
  out.hint = read_hint(query);
  out.shared = query.flag("shared").value_or(true);
  out.have = static_cast<std::uint32_t>(query.number("have", kAnyU32).value_or(0));
  if (const auto name = query.text("kv_group")) out.kv_group.emplace(*name);
  CAIRN_TRY(query.finish());
  return borrow_keys(
      call, {.key_bytes = *key_bytes, .max_keys = service.manager.options().max_blocks_per_request},
      out.keys);
}

Result<> read_match(const Service& service, const Call& call, const Cache& cache, MatchBody& out) {
  if (is_bytes_type(call.head.content_type)) return read_packed(service, call, out);
  if (!call.head.query.empty()) CAIRN_TRY(Query(call.head.query).finish());
  const auto limits = MatchLimits::of(service.manager.options().max_blocks_per_request,
                                      cache.config().tokens_per_key());
  // As many tokens as a JSON body may have, which is read without a document.
  const std::size_t with_tokens =
      limits.max_tokens < SIZE_MAX - kValuesOfFrame ? limits.max_tokens + kValuesOfFrame : SIZE_MAX;
  return read_hot(
      call, std::max(max_values(service), with_tokens),
      [&](std::span<const std::byte> body) { return hot_json::read_match(body, limits, out); });
}

std::vector<BlockKey> owned(std::span<const KeyView> keys) {
  return std::vector<BlockKey>(keys.begin(), keys.end());
}

// A packed response has no room for the id of the transfer.
void answer_match(const Cache& cache, bool packed, const MatchAnswer& answer, Reply& reply) {
  add_memory_id(reply, cache.memory_id());
  if (!packed) return reply.text(200, match_text(answer));
  const MatchResult& result = answer.result;
  reply.bytes(packed_blocks(result.lease, result.expires_at_unix_ms, result.blocks,
                            answer.remote_blocks.value_or(0)));
}

// Where the stored prefix of the keys is now. Pins it only for this call; does not count as a use.
std::vector<BlockHandle> blocks_now(Cache& cache, std::span<const KeyView> keys,
                                    const LeaseHolder& holder) {
  std::vector<BlockHandle> blocks;
  const auto readers = cache.read_prefix(keys, holder);
  if (!readers) return blocks;  // other readers have used up the quota
  for (const BlockReader& reader : *readers) blocks.push_back(reader.handle());
  return blocks;
}

// Responds with the blocks' places after they were brought up. The lease pins them, so all are
// stored, unless it ended meanwhile. Does not count as a use.
void answer_where_now(Cache& cache, const std::vector<BlockKey>& keys, MatchResult result,
                      TransferId transfer, bool packed, const LeaseHolder& holder, Reply& reply) {
  const std::vector<KeyView> views(keys.begin(), keys.end());
  result.blocks = blocks_now(cache, views, holder);
  answer_match(cache, packed,
               {.keys = views, .result = result, .with_transfer = true, .transfer = transfer},
               reply);
}

Span onboard_span(const Span& match, Tier to) {
  Span span = match.child("onboard");
  span.set("cairn.to", to_string(to));
  return span;
}

void match_and_onboard(Service& service, const Call& call, std::shared_ptr<Cache> cache,
                       const MatchBody& body, std::span<const KeyView> keys, MatchResult& result,
                       const Span& span, Reply reply) {
  const bool packed = call.style.form.bytes;
  // The tier was checked before anything was pinned.
  if (!result.lease) {
    return answer_match(*cache, packed, {.keys = keys, .result = result, .with_transfer = true},
                        reply);
  }
  HeldLease guard(cache, *result.lease);
  keys = keys.first(result.blocks.size());
  auto transfer = cache->onboard(
      {.lease = *result.lease, .keys = keys, .tier = *body.onboard, .quota = call.quota()});
  if (!transfer) return reply.error(transfer.error());
  if (*transfer) end_with_transfer(service, **transfer, onboard_span(span, *body.onboard));
  if (!*transfer || body.wait_ms == 0) {
    guard.keep();
    return answer_match(
        *cache, packed,
        {.keys = keys, .result = result, .with_transfer = true, .transfer = *transfer}, reply);
  }
  auto shared = std::make_shared<Reply>(std::move(reply));
  auto waiting = service.waits.wait(**transfer, body.wait_ms,
                                    [cache, shared, result, id = **transfer, packed,
                                     holder = call.holder(), owned_keys = owned(keys)]() mutable {
                                      answer_where_now(*cache, owned_keys, std::move(result), id,
                                                       packed, holder, *shared);
                                    });
  if (!waiting) return shared->error(waiting.error());
  guard.keep();
}

// The spans of a traced match with a shared tier.
struct MatchSpans {
  Span match = {};  // until the answer
  Span look = {};   // until the store has said what it has

  void begin_look(std::size_t keys) {
    look = match.child("shared lookup");
    look.set("cairn.keys", keys);
  }
  void end_look(const RemoteTier::Beyond& beyond) {
    look.set("cairn.blocks", beyond.blocks);
    look.end();
  }
  // `fetches` bring blocks of the shared tier here.
  void follow(const Service& service, std::span<const TransferId> fetches) {
    for (const TransferId id : fetches) end_with_transfer(service, id, match.child("fetch"));
  }
};

// A match on a cache with a shared tier, from its local part to its response.
struct RemoteMatch {
  std::shared_ptr<Cache> cache;
  std::vector<BlockKey> keys;
  MatchResult result;
  std::optional<Tier> onboard = {};
  std::shared_ptr<BlockQuota> quota = {};
  std::uint64_t remote_matched = 0;
  std::optional<TransferId> transfer = {};
  std::optional<std::uint32_t> lease_ms = {};
  std::shared_ptr<LeaseQuota> pins = {};
  LeaseHolder holder = {};
  RequestHint hint = {};
  bool packed = false;
  MatchSpans spans = {};
  Reply reply;

  void answer() {
    const std::vector<KeyView> views(keys.begin(), keys.end());
    answer_match(*cache, packed,
                 {.keys = views,
                  .result = result,
                  .with_transfer = true,
                  .transfer = transfer,
                  .remote_blocks = remote_matched},
                 reply);
  }
  void refuse(Error error) {
    if (result.lease) static_cast<void>(cache->release(*result.lease));
    reply.error(std::move(error));
  }
  // Copies the leased blocks up to the tier of `onboard`. nullopt if none has to move.
  Result<std::optional<TransferId>> bring_up() const {
    if (!onboard || !result.lease) return std::optional<TransferId>();
    const std::vector<KeyView> views = views_of(0, result.blocks.size());
    return cache->onboard(
        {.lease = *result.lease, .keys = views, .tier = *onboard, .quota = quota});
  }
  // After a fetch more of the keys may be stored: adds them to the lease. Not counted as a new
  // match.
  void find_again() {
    const std::size_t known = result.blocks.size() + remote_matched;
    if (lease_ms == 0) {
      result.blocks = blocks_now(*cache, views_of(0, known), holder);
    } else if (const auto joined = join(known);
               !joined && (joined.error().code == ErrorCode::lease_expired ||
                           joined.error().code == ErrorCode::unknown_lease)) {
      // The wait took longer than the lease. Without room for a new one the match is a miss.
      result = {};
      static_cast<void>(join(known));
    }
    remote_matched = known - std::min(known, result.blocks.size());
    if (onboard && result.lease) {
      // Others may have brought some of them into a lower tier.
      if (const auto rest = bring_up(); rest && *rest) transfer = *rest;
      auto now = blocks_now(*cache, views_of(0, result.blocks.size()), holder);
      if (now.size() == result.blocks.size()) result.blocks = std::move(now);
    }
    answer();
  }

 private:
  std::vector<KeyView> views_of(std::size_t first, std::size_t end) const {
    const std::span<const BlockKey> part = std::span(keys).subspan(first, end - first);
    return {part.begin(), part.end()};
  }

  Result<> join(std::size_t known) {
    const std::vector<KeyView> beyond = views_of(result.blocks.size(), known);
    const std::vector<bool> here = cache->contains(beyond);
    const auto count = static_cast<std::size_t>(std::ranges::find(here, false) - here.begin());
    auto held = cache->hold(std::span(beyond).first(count), {.lease_ms = lease_ms,
                                                             .lease = result.lease,
                                                             .holder = holder,
                                                             .hint = hint,
                                                             .pins = pins});
    if (!held) return std::move(held).error();
    result.lease = held->lease;
    result.expires_at_unix_ms = held->expires_at_unix_ms;
    for (const auto& block : held->blocks) {
      if (!block) break;
      result.blocks.push_back(*block);
    }
    return {};
  }
};

struct Beyond {
  std::uint64_t missing = 0;  // keys that the cache lacks
  std::uint32_t wait_ms = 0;
};
// Continues a match with the answer of the shared tier: it brings up what `onboard` asks for, then
// it responds, or looks again first. A transfer of blocks that were found here is the one reported.
template <class Match>
auto go_on_beyond(Service& service, std::shared_ptr<Match> match, const Beyond& of) {
  return [&service, match = std::move(match), of](const RemoteTier::Beyond& beyond) {
    match->cache->count_beyond(
        {.remote_blocks = beyond.blocks, .missed_blocks = of.missing - beyond.blocks});
    match->remote_matched = beyond.blocks;
    match->spans.end_look(beyond);
    match->spans.follow(service, beyond.transfers);
    const auto up = match->bring_up();
    if (!up) return match->refuse(up.error());
    if (*up) end_with_transfer(service, **up, onboard_span(match->spans.match, *match->onboard));
    std::vector<TransferId> transfers = beyond.transfers;
    if (*up) transfers.push_back(**up);
    if (!transfers.empty()) match->transfer = transfers.back();
    if (match->transfer && of.wait_ms > 0) {
      std::vector<TransferWaits::Waited> waited;
      for (const TransferId id : transfers) waited.push_back({id, of.wait_ms});
      return service.waits.wait_for_all(waited, [match] { match->find_again(); });
    }
    if (beyond.here > 0) return match->find_again();
    match->answer();
  };
}

void match_remote(Service& service, const Call& call, const std::shared_ptr<Cache>& cache,
                  const MatchBody& body, std::span<const KeyView> keys, const MatchResult& result,
                  Span span, Reply reply) {
  auto match = std::make_shared<RemoteMatch>(RemoteMatch{.cache = cache,
                                                         .keys = owned(keys),
                                                         .result = result,
                                                         .onboard = body.onboard,
                                                         .quota = call.quota(),
                                                         .lease_ms = body.lease_ms,
                                                         .pins = call.pins(),
                                                         .holder = call.holder(),
                                                         .hint = body.hint,
                                                         .packed = call.style.form.bytes,
                                                         .spans = {.match = std::move(span)},
                                                         .reply = std::move(reply)});
  const std::size_t here = result.blocks.size();
  const auto looked =
      go_on_beyond(service, match, {.missing = keys.size() - here, .wait_ms = body.wait_ms});
  const auto tier = service.shared == nullptr ? nullptr : service.shared->of(cache);
  if (tier == nullptr || !body.shared) return looked({});
  tier->matched(keys.first(here));
  match->spans.begin_look(keys.size() - here);
  // Fetched blocks evict others, as a transfer does.
  tier->probe_remote({.keys = keys.subspan(here),
                      .to = body.onboard.value_or(tier->default_tier()),
                      .quota = call.quota(),
                      .fetches = check_role(call, Role::write).has_value(),
                      .patience = std::chrono::milliseconds(body.wait_ms)},
                     looked);
}

// A match in a cache of several KV groups, in one of its groups, or one whose caller has blocks
// itself.
struct GroupMatching {
  std::shared_ptr<Cache> cache;
  std::vector<BlockKey> keys;
  std::uint32_t have = 0;
  std::optional<KvGroupNumber> kv_group = {};  // finds the keys in this group alone
  std::optional<Tier> onboard = {};
  std::shared_ptr<BlockQuota> quota = {};
  std::optional<std::uint32_t> lease_ms = {};
  std::shared_ptr<LeaseQuota> pins = {};
  LeaseHolder holder = {};
  RequestHint hint = {};
  GroupMatch match = {};
  std::optional<TransferId> transfer = {};
  std::optional<std::uint64_t> remote_matched = {};  // beyond those matched; with a shared tier
  bool with_transfer = false;
  bool packed = false;
  MatchSpans spans = {};
  Reply reply;

  Result<> find() {
    std::vector<KeyView> views(keys.begin(), keys.end());
    if (kv_group) {
      for (KeyView& view : views) view = view.in(*kv_group);
      return find_in_group(views);
    }
    return cache->match_groups({.keys = views,
                                .have = have,
                                .lease_ms = lease_ms,
                                .pins = pins,
                                .holder = holder,
                                .hint = hint},
                               match);
  }
  Result<> find_in_group(std::span<const KeyView> views) {
    MatchResult found;
    CAIRN_TRY(cache->match(views, lease_ms, found, pins, holder, hint));
    match.matched = match.full_matched = static_cast<std::uint32_t>(found.blocks.size());
    match.lease = found.lease;
    match.expires_at_unix_ms = found.expires_at_unix_ms;
    for (std::uint32_t i = 0; i < found.blocks.size(); ++i) {
      match.blocks.push_back({.key = i, .handle = found.blocks[i]});
    }
    return {};
  }
  // Adds what was found to the span of the match.
  void describe() {
    Span& span = spans.match;
    if (!span) return;
    span.set("cairn.matched", match.matched);
    std::vector<BlockHandle> found;
    for (const GroupMatch::Block& block : match.blocks) found.push_back(block.handle);
    set_blocks(span, found);
  }
  void refuse(Error error) {
    if (match.lease) static_cast<void>(cache->release(*match.lease));
    reply.error(std::move(error));
  }
  // Copies the leased blocks up to the tier of `onboard`. nullopt if none has to move.
  Result<std::optional<TransferId>> bring_up() const {
    if (!onboard || !match.lease) return std::optional<TransferId>();
    return cache->onboard(
        {.lease = *match.lease, .keys = block_keys(), .tier = *onboard, .quota = quota});
  }
  // After a fetch more may be usable. Without room for a lease the match stays as it was.
  void find_again() {
    GroupMatch before = std::exchange(match, {});
    const std::uint64_t known = before.matched + remote_matched.value_or(0);
    if (const auto found = find(); !found || match.matched < before.matched) {
      if (found && match.lease) static_cast<void>(cache->release(*match.lease));
      match = std::move(before);
    } else if (before.lease) {
      static_cast<void>(cache->release(*before.lease));
    }
    remote_matched = known - std::min<std::uint64_t>(known, match.matched);
    if (!onboard) return answer();
    // Others may have brought some of them into a lower tier.
    if (const auto rest = bring_up(); rest && *rest) transfer = *rest;
    answer_where_now();
  }

  void answer() {
    const std::vector<KeyView> views(keys.begin(), keys.end());
    add_memory_id(reply, cache->memory_id());
    if (!packed) {
      return reply.text(200, group_match_text({.keys = views,
                                               .match = match,
                                               .groups = KvGroupNames(cache->config()),
                                               .with_transfer = with_transfer,
                                               .transfer = transfer,
                                               .remote_keys = remote_matched}));
    }
    reply.add_header("Cairn-Matched", std::to_string(match.matched));
    reply.add_header("Cairn-Full-Matched", std::to_string(match.full_matched));
    if (remote_matched) reply.add_header("Cairn-Shared-Matched", std::to_string(*remote_matched));
    std::vector<BlockHandle> blocks;
    blocks.reserve(match.blocks.size());
    for (const GroupMatch::Block& block : match.blocks) blocks.push_back(block.handle);
    reply.bytes(packed_blocks(match.lease, match.expires_at_unix_ms, blocks));
  }
  // The keys of the matched blocks, in the same order.
  std::vector<KeyView> block_keys() const {
    std::vector<KeyView> views;
    views.reserve(match.blocks.size());
    for (const GroupMatch::Block& block : match.blocks) {
      views.push_back(keys[block.key].view().in(block.handle.kv_group));
    }
    return views;
  }
  // Responds with the blocks' places after they were brought up. A block that is gone, because the
  // lease ended meanwhile, keeps its old handle.
  void answer_where_now() {
    const std::vector<BlockHandle> now = blocks_now(*cache, block_keys(), holder);
    for (std::size_t i = 0; i < now.size(); ++i) match.blocks[i].handle = now[i];
    answer();
  }
};

void onboard_groups(Service& service, const MatchBody& body,
                    const std::shared_ptr<GroupMatching>& matching) {
  auto transfer = matching->bring_up();
  if (!transfer) return matching->refuse(transfer.error());
  matching->transfer = *transfer;
  if (*transfer) {
    end_with_transfer(service, **transfer, onboard_span(matching->spans.match, *body.onboard));
  }
  if (!*transfer || body.wait_ms == 0) return matching->answer();
  auto waiting =
      service.waits.wait(**transfer, body.wait_ms, [matching] { matching->answer_where_now(); });
  if (!waiting) matching->refuse(waiting.error());
}

// A match in a cache with a shared tier, after its local part.
void match_groups_remote(Service& service, const Call& call, const MatchBody& body,
                         const std::shared_ptr<GroupMatching>& matching) {
  const auto& cache = matching->cache;
  matching->with_transfer = true;
  matching->remote_matched = 0;
  const auto looked = go_on_beyond(
      service, matching,
      {.missing = matching->keys.size() - matching->match.matched, .wait_ms = body.wait_ms});
  const auto tier = service.shared == nullptr ? nullptr : service.shared->of(cache);
  if (tier == nullptr || !body.shared) return looked({});
  tier->matched(matching->block_keys());
  matching->spans.begin_look(matching->keys.size() - matching->match.matched);
  const std::vector<KeyView> keys(matching->keys.begin(), matching->keys.end());
  tier->probe_groups({.keys = keys,
                      .matched = matching->match.matched,
                      .have = matching->have,
                      .to = body.onboard.value_or(tier->default_tier()),
                      .quota = call.quota(),
                      .fetches = check_role(call, Role::write).has_value(),
                      .patience = std::chrono::milliseconds(body.wait_ms)},
                     looked);
}

// The group that the request names. Errors: unknown_kv_group; malformed if the request also has
// what concerns all groups.
Result<std::optional<KvGroupNumber>> one_group(const Cache& cache, const MatchBody& body) {
  if (!body.kv_group) return std::optional<KvGroupNumber>();
  if (body.have > 0 || body.has_tokens) {
    return Error{ErrorCode::malformed,
                 std::string("kv_group and ") + (body.have > 0 ? "have" : "tokens") +
                     " are both given; a match in one KV group takes the keys of its blocks"};
  }
  return KvGroupNames(cache.config()).number(*body.kv_group);
}

void match_groups(Service& service, const Call& call, std::shared_ptr<Cache> cache,
                  const MatchBody& body, std::span<const KeyView> keys, Span span, Reply reply) {
  const auto kv_group = one_group(*cache, body);
  if (!kv_group) return reply.error(kv_group.error());
  auto matching =
      std::make_shared<GroupMatching>(GroupMatching{.cache = std::move(cache),
                                                    .keys = owned(keys),
                                                    .have = body.have,
                                                    .kv_group = *kv_group,
                                                    .onboard = body.onboard,
                                                    .quota = call.quota(),
                                                    .lease_ms = body.lease_ms,
                                                    .pins = call.pins(),
                                                    .holder = call.holder(),
                                                    .hint = body.hint,
                                                    .with_transfer = body.onboard.has_value(),
                                                    .packed = call.style.form.bytes,
                                                    .spans = {.match = std::move(span)},
                                                    .reply = std::move(reply)});
  if (const auto found = matching->find(); !found) return matching->reply.error(found.error());
  matching->describe();
  if (matching->cache->config().shared && !body.kv_group) {
    return match_groups_remote(service, call, body, matching);
  }
  if (matching->cache->config().shared) {
    matching->cache->count_beyond({.missed_blocks = keys.size() - matching->match.matched});
  }
  if (body.onboard && matching->match.lease) return onboard_groups(service, body, matching);
  matching->answer();
}

void match_with(Service& service, const Call& call, std::shared_ptr<Cache> cache, Scratch& scratch,
                Reply reply) {
  auto& [body, result] = scratch;
  if (auto read = read_match(service, call, *cache, body); !read) return reply.error(read.error());
  if (body.has_tokens) {
    std::optional<std::string_view> salt;
    if (body.salt) salt = *body.salt;
    add_token_keys(
        {.tokens = body.tokens, .page_size = cache->config().tokens_per_key(), .salt = salt},
        body.keys);
  }
  if (body.onboard) {
    // Onboarded blocks evict others, as a transfer does.
    if (auto may = check_role(call, Role::write); !may) return reply.error(may.error());
    if (auto has = check_tier(*cache, *body.onboard); !has) return reply.error(has.error());
  }
  const auto keys = body.keys.views();
  Span span = call.begin_span("match");
  span.set("cairn.keys", keys.size());
  if (!cache->config().kv_groups.empty() || body.have > 0 || body.kv_group) {
    return match_groups(service, call, std::move(cache), body, keys, std::move(span),
                        std::move(reply));
  }
  if (auto matched =
          cache->match(keys, body.lease_ms, result, call.pins(), call.holder(), body.hint);
      !matched) {
    return reply.error(matched.error());
  }
  span.set("cairn.matched", result.blocks.size());
  set_blocks(span, result.blocks);
  if (cache->config().shared) {
    return match_remote(service, call, cache, body, keys, result, std::move(span),
                        std::move(reply));
  }
  if (body.onboard) {
    return match_and_onboard(service, call, std::move(cache), body, keys, result, span,
                             std::move(reply));
  }
  answer_match(*cache, call.style.form.bytes, {.keys = keys, .result = result}, reply);
}

}  // namespace

void match(Service& service, const Call& call, std::shared_ptr<Cache> cache, Reply reply) {
  Scratch& scratch = scratch_of_thread();
  match_with(service, call, std::move(cache), scratch, std::move(reply));
  scratch.clear();
}

}  // namespace cairn::routes
