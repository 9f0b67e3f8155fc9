#include "server/codec/answers.hpp"
#include "server/codec/hot_json.hpp"
#include "server/codec/ids.hpp"
#include "server/routes/common.hpp"
#include "server/routes/handlers.hpp"

namespace cairn::routes {
namespace {

struct LeaseOfPath {
  LeaseId lease;
  std::shared_ptr<Cache> cache;
};

Result<LeaseOfPath> lease_of(const Service& service, const Call& call) {
  const auto lease = lease_from(call.path[0]);
  if (!lease) {
    return Error{ErrorCode::unknown_lease, "there can be no lease '" +
                                               std::string(call.path[0].substr(0, 64)) +
                                               "': a lease is written as 32 hex digits"};
  }
  auto cache = service.manager.cache_of(*lease);
  if (!cache) return std::move(cache).error();
  return LeaseOfPath{*lease, std::move(*cache)};
}

// Returns impossible if waiting and eviction can never make room. A missing tier is reported later.
Result<> check_size(const Cache& cache, Tier tier, std::uint32_t count) {
  const auto& there = cache.config().tiers[index_of(tier)];
  if (!there || count <= there->num_blocks) return {};
  return Error{ErrorCode::impossible, "count is " + std::to_string(count) + "; tier " +
                                          std::string(to_string(tier)) + " has " +
                                          std::to_string(there->num_blocks) + " blocks"};
}

ordered_json lease_body(const LeaseInfo& info) {
  ordered_json blocks = ordered_json::object();
  for (Tier tier : kTiers) {
    const std::uint32_t count = info.blocks[index_of(tier)];
    if (count > 0) blocks[std::string(to_string(tier))] = count;
  }
  return {{"lease", lease_text(info.lease)},
          {"token", info.holder ? ordered_json(*info.holder) : ordered_json(nullptr)},
          {"expires_at_ms", info.expires_at_unix_ms},
          {"blocks", std::move(blocks)}};
}

}  // namespace

void allocate(Service& service, const Call& call, std::shared_ptr<Cache> cache, Reply reply) {
  const KvGroupNames groups(cache->config());
  auto body = read_hot(call, max_values(service), [&](std::span<const std::byte> bytes) {
    return hot_json::read_allocate(bytes, groups);
  });
  if (!body) return reply.error(body.error());
  if (auto fits = check_count(service, "count", body->count); !fits) {
    return reply.error({ErrorCode::out_of_range,
                        "count is " + std::to_string(body->count) + "; it takes 1 to " +
                            std::to_string(service.manager.options().max_blocks_per_request)});
  }
  const Tier tier = body->tier.value_or(cache->highest_tier());
  if (auto fits = check_size(*cache, tier, body->count); !fits) return reply.error(fits.error());
  const AllocateRequest request{.count = body->count,
                                .group_counts = std::move(body->group_counts),
                                .tier = tier,
                                .lease_ms = body->lease_ms,
                                .priority = body->priority,
                                .quota = call.quota(),
                                .pins = call.pins(),
                                .holder = call.holder()};
  cache->allocate(request, [cache, reply = std::move(reply),
                            packed = call.style.form.bytes](Result<Allocation> allocation) mutable {
    if (!allocation) return reply.error(allocation.error());
    add_memory_id(reply, cache->memory_id());
    if (!packed) {
      return reply.text(200, allocation_text(*allocation, KvGroupNames(cache->config())));
    }
    reply.bytes(
        packed_blocks(allocation->lease, allocation->expires_at_unix_ms, allocation->blocks));
  });
}

void commit(Service& service, const Call& call, std::shared_ptr<Cache> cache, Reply reply) {
  const std::size_t most = service.manager.options().max_blocks_per_request;
  const KvGroupNames groups(cache->config());
  auto body = read_hot(call, max_values(service), [&](std::span<const std::byte> bytes) {
    return hot_json::read_commit(bytes, {.max_blocks = most, .groups = groups});
  });
  if (!body) return reply.error(body.error());
  std::vector<BlockKey> keys;
  keys.reserve(body->blocks.size());
  for (const CommitBlock& block : body->blocks) keys.push_back(block.key);
  // The old content of a slot belongs to other keys. A client that may not map the tier must not
  // publish it by committing a slot that it did not write.
  const auto in_place = call.is_admin() ? InPlaceWrites::allowed : InPlaceWrites::forbidden;
  cache->commit(
      body->lease, std::move(body->blocks),
      [cache, reply = std::move(reply), keys = std::move(keys), pin_ms = body->pin_ms,
       holder = call.holder()](Result<std::vector<CommitStatus>> statuses) mutable {
        if (!statuses) return reply.error(statuses.error());
        if (pin_ms) {
          add_pin(reply, pin_for(*cache, {.keys = keys, .ttl_ms = *pin_ms, .holder = holder}));
        }
        reply.text(
            200,
            commit_text({.keys = keys, .statuses = *statuses, .shards_of = [&cache](KeyView key) {
                           return cache->pending_shards(key);
                         }}));
      },
      {.in_place = in_place, .release = body->release, .hint = std::move(body->hint)});
}

void renew(Service& service, const Call& call, Reply reply) {
  auto named = lease_of(service, call);
  if (!named) return reply.error(named.error());
  auto body = read_hot(call, max_values(service), hot_json::read_renew);
  if (!body) return reply.error(body.error());
  const auto expires_at_unix_ms = named->cache->renew(named->lease, body->lease_ms);
  if (!expires_at_unix_ms) return reply.error(expires_at_unix_ms.error());
  reply.text(200, renewed_text(named->lease, *expires_at_unix_ms));
}

void release(Service& service, const Call& call, Reply reply) {
  auto named = lease_of(service, call);
  if (!named) return reply.error(named.error());
  const std::size_t most = service.manager.options().max_blocks_per_request;
  const KvGroupNames groups(named->cache->config());
  auto body = read_hot(call, max_values(service), [&](std::span<const std::byte> bytes) {
    return hot_json::read_release(bytes, {.max_blocks = most, .groups = groups});
  });
  if (!body) return reply.error(body.error());
  if (body->pin_ms) {
    // It keeps room from others, as a write does.
    if (auto may = check_role(call, Role::write); !may) return reply.error(may.error());
    const auto keys = named->cache->keys_of_lease(named->lease, body->blocks);
    if (!keys) return reply.error(keys.error());
    add_pin(reply, pin_for(*named->cache,
                           {.keys = *keys, .ttl_ms = *body->pin_ms, .holder = call.holder()}));
  }
  const auto released = named->cache->release(named->lease, {.blocks = body->blocks,
                                                             .to_lease = body->to_lease,
                                                             .input_tokens = body->input_tokens,
                                                             .output_tokens = body->output_tokens,
                                                             .hint = std::move(body->hint)});
  if (!released) return reply.error(released.error());
  reply.text(200, released_text(*released));
}

void end_lease(Service& service, const Call& call, Reply reply) {
  auto named = lease_of(service, call);
  if (!named) return reply.error(named.error());
  const auto released = named->cache->release(named->lease);
  if (!released) return reply.error(released.error());
  reply.text(200, released_text(*released));
}

// Anyone who knows a lease may end it, so only an admin sees the leases of others.
void list_leases(Service& service, const Call& call, std::shared_ptr<Cache> cache, Reply reply) {
  Query query(call.head.query);
  LeaseListRequest request;
  request.limit = query.limit();
  request.cursor = query.number("cursor", {}).value_or(0);
  if (auto read = query.finish(); !read) return reply.error(read.error());
  if (!call.is_admin()) request.holder = *call.holder();
  answer_on(service.readers, std::move(reply),
            [cache = std::move(cache), request = std::move(request)](Reply& answer) {
              const auto list = cache->leases(request);
              if (!list) return answer.error(list.error());
              ordered_json leases = ordered_json::array();
              for (const LeaseInfo& info : list->leases) leases.push_back(lease_body(info));
              answer.document(200, {{"leases", std::move(leases)},
                                    {"next_cursor", cursor_body(list->next_cursor)}});
            });
}

}  // namespace cairn::routes
