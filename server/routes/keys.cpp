#include "server/codec/dom_blocks.hpp"
#include "server/codec/ids.hpp"
#include "server/routes/common.hpp"
#include "server/routes/handlers.hpp"

namespace cairn::routes {
namespace {

struct EvictBody {
  std::vector<BlockKey> keys;
  std::optional<Tier> tier;
  std::optional<KvGroupNumber> kv_group;  // nullopt: all
};

ordered_json evicted_body(const EvictResult& result) {
  return {{"evicted", result.evicted},
          {"offloaded", result.offloaded},
          {"leased", result.leased},
          {"missing", result.missing}};
}

ordered_json block_body(const BlockInfo& info, const KvGroupNames& groups) {
  ordered_json body = {{"tier", to_string(info.handle.tier)},
                       {"slot", info.handle.slot},
                       {"generation", info.handle.generation},
                       {"state", to_string(info.state)},
                       {"key", nullptr},
                       {"parent", nullptr},
                       {"metadata", nullptr},
                       {"epoch", info.epoch},
                       {"priority", info.priority},
                       {"last_use_ms", info.last_use_unix_ms}};
  if (groups.are_shown()) body["kv_group"] = groups.name(info.handle.kv_group);
  if (info.key) body["key"] = key_text(*info.key);
  if (info.parent) body["parent"] = key_text(*info.parent);
  if (!info.metadata.empty()) {
    body["metadata"] = ordered_json::parse(info.metadata, nullptr, /*allow_exceptions=*/false);
  }
  return body;
}

Result<BlockListRequest> read_list(const Call& call) {
  Query query(call.head.query);
  BlockListRequest request;
  request.tier = query.tier("tier");
  if (const auto word = query.text("state")) {
    request.state = slot_state_from(*word);
    if (!request.state) {
      query.refuse(ErrorCode::out_of_range,
                   "state is '" + std::string(word->substr(0, 64)) +
                       "'; it takes one of free, allocated, committed, evictable");
    }
  }
  request.limit = query.limit();
  request.cursor = query.number("cursor", {}).value_or(0);
  CAIRN_TRY(query.finish());
  return request;
}

}  // namespace

void delete_key(Service&, const Call& call, std::shared_ptr<Cache> cache, Reply reply) {
  auto key = key_of(call);
  if (!key) return reply.error(key.error());
  Query query(call.head.query);
  const auto group = read_kv_group(query, KvGroupNames(cache->config()));
  if (auto read = query.finish(); !read) return reply.error(read.error());
  if (auto erased = cache->erase_all(blocks_of_keys(*cache, {*key}, group)); !erased) {
    return reply.error(erased.error());
  }
  reply.empty(204);
}

void get_metadata(Service&, const Call& call, std::shared_ptr<Cache> cache, Reply reply) {
  auto key = block_key_of(call, *cache);
  if (!key) return reply.error(key.error());
  auto text = cache->metadata(*key);
  if (!text) return reply.error(text.error());
  reply.text(200, text->empty() ? "{}" : std::move(*text));
}

void put_metadata(Service&, const Call& call, std::shared_ptr<Cache> cache, Reply reply) {
  auto key = block_key_of(call, *cache);
  if (!key) return reply.error(key.error());
  auto document = body_document(call);
  if (!document) return reply.error(document.error());
  DecodeErrors errors;
  const Fields checks_that_it_is_an_object(*document, "", errors);
  if (auto good = errors.take(); !good) return reply.error(good.error());
  std::string text = document->empty() ? "" : document->dump();
  if (auto set = cache->set_metadata(*key, std::move(text)); !set) {
    return reply.error(set.error());
  }
  reply.empty(204);
}

void list_blocks(Service& service, const Call& call, std::shared_ptr<Cache> cache, Reply reply) {
  auto request = read_list(call);
  if (!request) return reply.error(request.error());
  if (request->tier) {
    if (auto has = check_tier(*cache, *request->tier); !has) return reply.error(has.error());
  }
  answer_on(service.readers, std::move(reply),
            [cache = std::move(cache), request = *request](Reply& answer) {
              auto list = cache->list(request);
              if (!list) return answer.error(list.error());
              ordered_json blocks = ordered_json::array();
              const KvGroupNames groups(cache->config());
              for (const BlockInfo& info : list->blocks) blocks.push_back(block_body(info, groups));
              answer.document(200, {{"blocks", std::move(blocks)},
                                    {"next_cursor", cursor_body(list->next_cursor)}});
            });
}

void list_pending(Service& service, const Call& call, std::shared_ptr<Cache> cache, Reply reply) {
  Query query(call.head.query);
  PendingRequest request;
  request.limit = query.limit();
  request.cursor = query.number("cursor", {}).value_or(0);
  if (auto read = query.finish(); !read) return reply.error(read.error());
  answer_on(service.readers, std::move(reply), [cache = std::move(cache), request](Reply& answer) {
    const PendingList list = cache->pending(request);
    const KvGroupNames groups(cache->config());
    ordered_json blocks = ordered_json::array();
    for (const PendingBlock& block : list.blocks) {
      blocks.push_back({{"key", key_text(block.key)},
                        {"from", to_string(block.from)},
                        {"to", to_string(block.to)},
                        {"age_ms", block.age_ms}});
      if (groups.are_shown()) blocks.back()["kv_group"] = groups.name(block.key.kv_group());
    }
    answer.document(
        200, {{"pending", std::move(blocks)}, {"next_cursor", cursor_body(list.next_cursor)}});
  });
}

void evict(Service& service, const Call& call, std::shared_ptr<Cache> cache, Reply reply) {
  const std::size_t max_keys = service.manager.options().max_blocks_per_request;
  const KvGroupNames groups(cache->config());
  auto body = read_body(call, max_values(service), [&](Fields& fields) {
    return EvictBody{.keys = read_keys(fields, "keys", max_keys),
                     .tier = read_optional_tier(fields, "tier"),
                     .kv_group = read_kv_group(fields, groups)};
  });
  if (!body) return reply.error(body.error());
  if (body->tier) {
    if (auto has = check_tier(*cache, *body->tier); !has) return reply.error(has.error());
  }
  cache->evict(blocks_of_keys(*cache, std::move(body->keys), body->kv_group), body->tier,
               [reply = std::move(reply)](Result<EvictResult> result) mutable {
                 if (!result) return reply.error(result.error());
                 reply.document(200, evicted_body(*result));
               });
}

void clear(Service& service, const Call& call, std::shared_ptr<Cache> cache, Reply reply) {
  auto tier =
      read_optional_body(call, [](Fields& fields) { return read_optional_tier(fields, "tier"); });
  if (!tier) return reply.error(tier.error());
  if (*tier) {
    if (auto has = check_tier(*cache, **tier); !has) return reply.error(has.error());
  }
  answer_on(service.admin, std::move(reply),
            [cache = std::move(cache), tier = *tier](Reply& answer) {
              auto result = cache->clear(tier);
              if (!result) return answer.error(result.error());
              answer.document(200, evicted_body(*result));
            });
}

}  // namespace cairn::routes
