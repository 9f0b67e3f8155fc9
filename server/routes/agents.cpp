#include "blockmgr/index/cache_name.hpp"
#include "server/codec/agent_body.hpp"
#include "server/codec/ids.hpp"
#include "server/routes/common.hpp"
#include "server/routes/handlers.hpp"

namespace cairn::routes {
namespace {

// Puts the open files sent with the request into the regions.
Result<> take_files(AgentConfig& config, const Call& call) {
  for (std::size_t i = 0; i < config.regions.size(); ++i) {
    AgentConfig::Part& part = config.regions[i];
    if (!part.descriptor) continue;
    auto file =
        passed_file(call, "regions[" + std::to_string(i) + "].descriptor", *part.descriptor);
    if (!file) return std::move(file).error();
    part.memory.file = std::move(*file);
  }
  return {};
}

Agent::Terms terms_of(const AgentBody& body, const Call& call) {
  Agent::Terms terms{.holder = call.holder(),
                     .lease_ms = body.lease_ms.value_or(Agents::kDefaultLeaseMs),
                     .registered = call.registered()};
  if (body.is_tethered() && call.connection != nullptr) terms.tether = *call.connection;
  return terms;
}

Result<AgentCopyBody> read_copy(const Service& service, const Call& call, AgentCopyKind kind) {
  return read_body(call, max_values(service), [&service, kind](Fields& fields) {
    return read_agent_copy(fields, kind, service.manager.options().max_blocks_per_request);
  });
}

void answer_transfer(Service& service, const Result<TransferId>& id, std::uint32_t wait_ms,
                     Reply reply) {
  if (!id) return reply.error(id.error());
  answer_when_ended(service,
                    {.id = *id, .wait_ms = wait_ms, .status_unfinished = 202, .starts_it = true},
                    std::move(reply));
}

}  // namespace

void put_agent(Service& service, const Call& call, Reply reply) {
  const std::string name(call.path[0]);
  if (!is_cache_name(name)) {
    return reply.error({ErrorCode::malformed,
                        "the agent's name is '" + name.substr(0, 80) +
                            "'; it is written as a cache's: " + std::string(kCacheNameRule)});
  }
  auto body = read_body(call, kMaxDocumentValues,
                        [&name](Fields& fields) { return read_agent_body(fields, name); });
  if (!body) return reply.error(body.error());
  if (auto taken = take_files(body->config, call); !taken) return reply.error(taken.error());
  Agent::Terms terms = terms_of(*body, call);
  answer_on(service.admin, std::move(reply),
            [&service, config = std::move(body->config), terms = std::move(terms)](Reply& answer) {
              const auto registered = service.manager.agents().put(config, terms);
              if (!registered) return answer.error(registered.error());
              const ordered_json told = agent_info_body(registered->agent, true);
              if (!registered->is_new) return answer.document(200, told);
              service.log.info("an agent is registered", {{"agent", config.name}});
              answer.located(201, "/v1/agents/" + config.name, told);
            });
}

void list_agents(Service& service, const Call& call, Reply reply) {
  ordered_json agents = ordered_json::array();
  for (const AgentInfo& info : service.manager.agents().list(call.holder(), call.is_admin())) {
    agents.push_back(agent_info_body(info, false));
  }
  reply.document(200, {{"agents", std::move(agents)}});
}

void get_agent(Service& service, const Call& call, Reply reply) {
  const auto info = service.manager.agents().find(call.path[0], call.holder(), call.is_admin());
  if (!info) return reply.error(info.error());
  reply.document(200, agent_info_body(*info, false));
}

void delete_agent(Service& service, const Call& call, Reply reply) {
  // On `admin`, because it frees memory.
  answer_on(service.admin, std::move(reply),
            [&service, name = std::string(call.path[0]), holder = call.holder(),
             sees_all = call.is_admin()](Reply& answer) {
              auto shared = std::make_shared<Reply>(std::move(answer));
              auto removed = service.manager.agents().remove(name, holder, sees_all,
                                                             [shared] { shared->empty(204); });
              if (!removed) shared->error(removed.error());
            });
}

void load_to_agent(Service& service, const Call& call, std::shared_ptr<Cache> cache, Reply reply) {
  auto body = read_copy(service, call, AgentCopyKind::load);
  if (!body) return reply.error(body.error());
  const auto id = service.manager.agents().load(body->agent, call.holder(),
                                                {.cache = std::move(cache),
                                                 .agent = {},
                                                 .keys = std::move(body->keys),
                                                 .blocks = std::move(body->blocks),
                                                 .pins = call.pins()});
  answer_transfer(service, id, body->wait_ms, std::move(reply));
}

void store_from_agent(Service& service, const Call& call, std::shared_ptr<Cache> cache,
                      Reply reply) {
  auto body = read_copy(service, call, AgentCopyKind::store);
  if (!body) return reply.error(body.error());
  AgentStoreRequest request;
  request.cache = std::move(cache);
  request.keys = std::move(body->keys);
  request.blocks = std::move(body->blocks);
  request.parents = std::move(body->parents);
  request.tier = body->tier;
  request.quota = call.quota();
  request.pins = call.pins();
  request.holder = call.holder();
  const auto id = service.manager.agents().store(body->agent, std::move(request));
  answer_transfer(service, id, body->wait_ms, std::move(reply));
}

}  // namespace cairn::routes
