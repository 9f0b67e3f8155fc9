#include "blockmgr/agent/agents.hpp"

#include <utility>

namespace cairn {
namespace {

bool is_of(const Agent& agent, const LeaseHolder& holder) {
  if (!agent.holder() || !holder) return agent.holder() == holder;
  return *agent.holder() == *holder;
}

Error exists(const std::string& name) {
  return {ErrorCode::agent_exists, "agent " + name + " belongs to another token"};
}

}  // namespace

Agents::Agents(std::shared_ptr<CacheServices> services) : services_(std::move(services)) {}

Agents::~Agents() {
  for (const auto& agent : all()) agent->end([] {});
}

Result<Agents::Registered> Agents::put(AgentConfig config, const Agent::Terms& terms) {
  const std::uint32_t most_ms = services_->options.max_lease_ms;
  if (!terms.tether && (terms.lease_ms < 1 || terms.lease_ms > most_ms)) {
    return Error{ErrorCode::out_of_range, "lease_ms is " + std::to_string(terms.lease_ms) +
                                              ", not 1 to " + std::to_string(most_ms)};
  }
  tick();  // frees the names of agents whose connection has just gone
  MutexLock registering(registering_);
  std::shared_ptr<Agent> before;
  {
    MutexLock lock(mutex_);
    const auto at = agents_.find(config.name);
    if (at != agents_.end()) before = at->second;
    if (before == nullptr && agents_.size() >= kMaxAgents) {
      return Error{ErrorCode::too_many, std::to_string(kMaxAgents) + " agents exist, the maximum"};
    }
  }
  if (before != nullptr) {
    if (!is_of(*before, terms.holder)) return exists(config.name);
    if (const auto use = Agent::use(before, nullptr)) {
      CAIRN_TRY(before->check_same(config));
      before->renew(terms);
      return Registered{before->info(), false};
    } else if (use.error().code != ErrorCode::unknown_agent) {
      return use.error();
    }
  }
  for (const auto& other : all()) {
    if (other->config().name != config.name) CAIRN_TRY(other->check_apart(config));
  }
  const std::uint64_t first_region = next_region_;
  next_region_ += config.regions.size();
  const std::string name = config.name;
  auto agent = Agent::make(std::move(config),
                           {.runtime = services_->runtime,
                            .clock = services_->clock,
                            .registry = registry_,
                            .import_folders = services_->options.import_folders,
                            .registered = services_->registered,
                            .first_region = first_region},
                           terms);
  if (!agent) return std::move(agent).error();
  Registered made{(*agent)->info(), true};
  MutexLock lock(mutex_);
  agents_.insert_or_assign(name, std::move(*agent));
  return made;
}

std::shared_ptr<Agent> Agents::look_up(std::string_view name, const LeaseHolder& holder,
                                       bool sees_all) const {
  MutexLock lock(mutex_);
  const auto at = agents_.find(name);
  if (at == agents_.end() || (!sees_all && !is_of(*at->second, holder))) return nullptr;
  return at->second;
}

Result<std::shared_ptr<Agent>> Agents::known(std::string_view name, const LeaseHolder& holder,
                                             bool sees_all) const {
  auto agent = look_up(name, holder, sees_all);
  if (agent != nullptr) return agent;
  return Error{ErrorCode::unknown_agent,
               "there is no agent '" + std::string(name.substr(0, 64)) + "'"};
}

Result<AgentInfo> Agents::find(std::string_view name, const LeaseHolder& holder,
                               bool sees_all) const {
  auto agent = known(name, holder, sees_all);
  if (!agent) return std::move(agent).error();
  return (*agent)->info();
}

std::vector<AgentInfo> Agents::list(const LeaseHolder& holder, bool sees_all) const {
  std::vector<AgentInfo> infos;
  for (const auto& agent : all()) {
    if (sees_all || is_of(*agent, holder)) infos.push_back(agent->info());
  }
  return infos;
}

Result<> Agents::remove(std::string_view name, const LeaseHolder& holder, bool sees_all,
                        UniqueFunction<void()> gone) {
  auto agent = known(name, holder, sees_all);
  if (!agent) return std::move(agent).error();
  take_out(*agent);
  (*agent)->end(std::move(gone));
  return {};
}

Result<TransferId> Agents::load(std::string_view name, const LeaseHolder& holder,
                                AgentCopyRequest request) {
  auto agent = known(name, holder, false);
  if (!agent) return std::move(agent).error();
  request.agent = std::move(*agent);
  return load_to_agent(std::move(request), counters_);
}

Result<TransferId> Agents::store(std::string_view name, AgentStoreRequest request) {
  auto agent = known(name, request.holder, false);
  if (!agent) return std::move(agent).error();
  request.agent = std::move(*agent);
  return store_from_agent(std::move(request), counters_);
}

bool Agents::cancel(TransferId id) {
  for (const auto& agent : all()) {
    if (agent->cancel(id)) return true;
  }
  return false;
}

void Agents::tick() {
  for (const auto& agent : all()) {
    if (!agent->is_overdue() || !take_out(agent)) continue;
    services_->log.info("an agent has ended", {{"agent", agent->config().name}});
    agent->end([] {});
  }
}

AgentStats Agents::stats() const {
  return {
      .agents = all().size(), .loads = counters_->loads.now(), .stores = counters_->stores.now()};
}

std::vector<std::shared_ptr<Agent>> Agents::all() const {
  std::vector<std::shared_ptr<Agent>> agents;
  MutexLock lock(mutex_);
  for (const auto& [name, agent] : agents_) agents.push_back(agent);
  return agents;
}

bool Agents::take_out(const std::shared_ptr<Agent>& agent) {
  MutexLock lock(mutex_);
  const auto at = agents_.find(agent->config().name);
  if (at == agents_.end() || at->second != agent) return false;
  agents_.erase(at);
  return true;
}

}  // namespace cairn
