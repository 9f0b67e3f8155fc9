#include "blockmgr/index/cache_name.hpp"
#include "server/codec/agent_body.hpp"
#include "server/codec/ids.hpp"
#include "server/routes/common.hpp"
#include "server/routes/handlers.hpp"

namespace cairn::routes {
namespace {

// Puts the open files sent with the request into the regions.
Result<> take_files(EngineMemoryConfig& config, const Call& call) {
  for (std::size_t i = 0; i < config.regions.size(); ++i) {
    EngineMemoryConfig::Part& part = config.regions[i];
    if (!part.descriptor) continue;
    auto file =
        passed_file(call, "regions[" + std::to_string(i) + "].descriptor", *part.descriptor);
    if (!file) return std::move(file).error();
    part.memory.file = std::move(*file);
  }
  return {};
}

EngineMemory::Terms terms_of(const EngineMemoryBody& body, const Call& call) {
  EngineMemory::Terms terms{.holder = call.holder(),
                            .lease_ms = body.lease_ms.value_or(EngineMemories::kDefaultLeaseMs),
                            .registered = call.registered()};
  if (body.is_tethered() && call.connection != nullptr) terms.tether = *call.connection;
  return terms;
}

Result<EngineCopyBody> read_copy(const Service& service, const Call& call, const Cache& cache,
                                 EngineCopyKind kind) {
  const KvGroupNames groups(cache.config());
  return read_body(call, max_values(service), [&](Fields& fields) {
    EngineCopyBody body =
        read_engine_copy(fields, kind, service.manager.options().max_blocks_per_request);
    const KvGroupNumber group = read_one_kv_group(fields, groups);
    body.keys = in_group(std::move(body.keys), group);
    for (auto& parent : body.parents) {
      if (parent) parent = in_group(*parent, group);
    }
    return body;
  });
}

Result<std::optional<ShardSelector>> shard_of(const Call& call) {
  Query query(call.head.query);
  const auto shard = query.shard();
  CAIRN_TRY(query.finish());
  return shard;
}

Span copy_span(const Call& call, std::string_view name, const EngineCopyBody& body) {
  Span span = call.begin_span(name);
  span.set("cairn.agent", body.memory);
  span.set("cairn.keys", body.keys.size());
  return span;
}

void answer_transfer(Service& service, const Result<TransferId>& id, std::uint32_t wait_ms,
                     Span span, Reply reply) {
  if (!id) return reply.error(id.error());
  end_with_transfer(service, *id, std::move(span));
  answer_when_ended(service,
                    {.id = *id, .wait_ms = wait_ms, .status_unfinished = 202, .starts_it = true},
                    std::move(reply));
}

}  // namespace

void put_engine_memory(Service& service, const Call& call, Reply reply) {
  const std::string name(call.path[0]);
  if (!is_cache_name(name)) {
    return reply.error({ErrorCode::malformed,
                        "the agent's name is '" + name.substr(0, 80) +
                            "'; it is written as a cache's: " + std::string(kCacheNameRule)});
  }
  auto body = read_body(call, kMaxDocumentValues,
                        [&name](Fields& fields) { return read_engine_memory_body(fields, name); });
  if (!body) return reply.error(body.error());
  if (auto taken = take_files(body->config, call); !taken) return reply.error(taken.error());
  EngineMemory::Terms terms = terms_of(*body, call);
  answer_on(service.admin, std::move(reply),
            [&service, config = std::move(body->config), terms = std::move(terms)](Reply& answer) {
              const auto registered = service.manager.engine_memories().put(config, terms);
              if (!registered) return answer.error(registered.error());
              const ordered_json registered_body = engine_memory_body(registered->memory, true);
              if (!registered->is_new) return answer.document(200, registered_body);
              service.log.info("an agent is registered", {{"agent", config.name}});
              answer.located(201, "/v1/agents/" + config.name, registered_body);
            });
}

void list_engine_memories(Service& service, const Call& call, Reply reply) {
  ordered_json engine_memories = ordered_json::array();
  for (const EngineMemoryInfo& info :
       service.manager.engine_memories().list(call.holder(), call.is_admin())) {
    engine_memories.push_back(engine_memory_body(info, false));
  }
  reply.document(200, {{"agents", std::move(engine_memories)}});
}

void get_engine_memory(Service& service, const Call& call, Reply reply) {
  const auto info =
      service.manager.engine_memories().find(call.path[0], call.holder(), call.is_admin());
  if (!info) return reply.error(info.error());
  reply.document(200, engine_memory_body(*info, false));
}

void delete_engine_memory(Service& service, const Call& call, Reply reply) {
  // On `admin`, because it frees memory.
  answer_on(service.admin, std::move(reply),
            [&service, name = std::string(call.path[0]), holder = call.holder(),
             sees_all = call.is_admin()](Reply& answer) {
              auto shared = std::make_shared<Reply>(std::move(answer));
              auto removed = service.manager.engine_memories().remove(
                  name, holder, sees_all, [shared] { shared->empty(204); });
              if (!removed) shared->error(removed.error());
            });
}

void load_to_engine(Service& service, const Call& call, std::shared_ptr<Cache> cache, Reply reply) {
  const auto shard = shard_of(call);
  if (!shard) return reply.error(shard.error());
  auto body = read_copy(service, call, *cache, EngineCopyKind::load);
  if (!body) return reply.error(body.error());
  Span span = copy_span(call, "load", *body);
  const auto id = service.manager.engine_memories().load(body->memory, call.holder(),
                                                         {.cache = std::move(cache),
                                                          .memory = {},
                                                          .keys = std::move(body->keys),
                                                          .blocks = std::move(body->blocks),
                                                          .pins = call.pins(),
                                                          .shard = *shard});
  answer_transfer(service, id, body->wait_ms, std::move(span), std::move(reply));
}

void store_from_engine(Service& service, const Call& call, std::shared_ptr<Cache> cache,
                       Reply reply) {
  const auto shard = shard_of(call);
  if (!shard) return reply.error(shard.error());
  auto body = read_copy(service, call, *cache, EngineCopyKind::store);
  if (!body) return reply.error(body.error());
  Span span = copy_span(call, "store", *body);
  EngineStoreRequest request;
  request.cache = std::move(cache);
  request.keys = std::move(body->keys);
  request.blocks = std::move(body->blocks);
  request.parents = std::move(body->parents);
  request.tier = body->tier;
  request.quota = call.quota();
  request.pins = call.pins();
  request.holder = call.holder();
  request.shard = *shard;
  const auto id = service.manager.engine_memories().store(body->memory, std::move(request));
  answer_transfer(service, id, body->wait_ms, std::move(span), std::move(reply));
}

}  // namespace cairn::routes
