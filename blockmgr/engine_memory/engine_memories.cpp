#include "blockmgr/engine_memory/engine_memories.hpp"

#include <utility>

namespace cairn {
namespace {

bool is_of(const EngineMemory& memory, const LeaseHolder& holder) {
  if (!memory.holder() || !holder) return memory.holder() == holder;
  return *memory.holder() == *holder;
}

Error exists(const std::string& name) {
  return {ErrorCode::agent_exists, "agent " + name + " belongs to another token"};
}

}  // namespace

EngineMemories::EngineMemories(std::shared_ptr<CacheServices> services)
    : services_(std::move(services)) {}

EngineMemories::~EngineMemories() {
  for (const auto& memory : all()) memory->end([] {});
}

Result<EngineMemories::Registered> EngineMemories::put(EngineMemoryConfig config,
                                                       const EngineMemory::Terms& terms) {
  const std::uint32_t most_ms = services_->options.max_lease_ms;
  if (!terms.tether && (terms.lease_ms < 1 || terms.lease_ms > most_ms)) {
    return Error{ErrorCode::out_of_range, "lease_ms is " + std::to_string(terms.lease_ms) +
                                              ", not 1 to " + std::to_string(most_ms)};
  }
  tick();  // frees the names of agents whose connection has just gone
  MutexLock registering(registering_);
  std::shared_ptr<EngineMemory> before;
  {
    MutexLock lock(mutex_);
    const auto at = engine_memories_.find(config.name);
    if (at != engine_memories_.end()) before = at->second;
    if (before == nullptr && engine_memories_.size() >= kMaxEngineMemories) {
      return Error{ErrorCode::too_many,
                   std::to_string(kMaxEngineMemories) + " agents exist, the maximum"};
    }
  }
  if (before != nullptr) {
    if (!is_of(*before, terms.holder)) return exists(config.name);
    if (const auto use = EngineMemory::use(before, nullptr)) {
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
  auto memory = EngineMemory::make(std::move(config),
                                   {.runtime = services_->runtime,
                                    .clock = services_->clock,
                                    .registry = registry_,
                                    .import_folders = services_->options.import_folders,
                                    .registered = services_->registered,
                                    .first_region = first_region},
                                   terms);
  if (!memory) return std::move(memory).error();
  Registered made{(*memory)->info(), true};
  MutexLock lock(mutex_);
  engine_memories_.insert_or_assign(name, std::move(*memory));
  return made;
}

std::shared_ptr<EngineMemory> EngineMemories::look_up(std::string_view name,
                                                      const LeaseHolder& holder,
                                                      bool sees_all) const {
  MutexLock lock(mutex_);
  const auto at = engine_memories_.find(name);
  if (at == engine_memories_.end() || (!sees_all && !is_of(*at->second, holder))) return nullptr;
  return at->second;
}

Result<std::shared_ptr<EngineMemory>> EngineMemories::known(std::string_view name,
                                                            const LeaseHolder& holder,
                                                            bool sees_all) const {
  auto memory = look_up(name, holder, sees_all);
  if (memory != nullptr) return memory;
  return Error{ErrorCode::unknown_agent,
               "there is no agent '" + std::string(name.substr(0, 64)) + "'"};
}

Result<EngineMemoryInfo> EngineMemories::find(std::string_view name, const LeaseHolder& holder,
                                              bool sees_all) const {
  auto memory = known(name, holder, sees_all);
  if (!memory) return std::move(memory).error();
  return (*memory)->info();
}

std::vector<EngineMemoryInfo> EngineMemories::list(const LeaseHolder& holder, bool sees_all) const {
  std::vector<EngineMemoryInfo> infos;
  for (const auto& memory : all()) {
    if (sees_all || is_of(*memory, holder)) infos.push_back(memory->info());
  }
  return infos;
}

Result<> EngineMemories::remove(std::string_view name, const LeaseHolder& holder, bool sees_all,
                                UniqueFunction<void()> gone) {
  auto memory = known(name, holder, sees_all);
  if (!memory) return std::move(memory).error();
  take_out(*memory);
  (*memory)->end(std::move(gone));
  return {};
}

Result<TransferId> EngineMemories::load(std::string_view name, const LeaseHolder& holder,
                                        EngineCopyRequest request) {
  auto memory = known(name, holder, false);
  if (!memory) return std::move(memory).error();
  request.memory = std::move(*memory);
  return load_to_engine(std::move(request), counters_);
}

Result<TransferId> EngineMemories::store(std::string_view name, EngineStoreRequest request) {
  auto memory = known(name, request.holder, false);
  if (!memory) return std::move(memory).error();
  request.memory = std::move(*memory);
  return store_from_engine(std::move(request), counters_);
}

bool EngineMemories::cancel(TransferId id) {
  for (const auto& memory : all()) {
    if (memory->cancel(id)) return true;
  }
  return false;
}

void EngineMemories::tick() {
  for (const auto& memory : all()) {
    if (!memory->is_overdue() || !take_out(memory)) continue;
    services_->log.info("an agent has ended", {{"agent", memory->config().name}});
    memory->end([] {});
  }
}

EngineMemoryStats EngineMemories::stats() const {
  return {.engine_memories = all().size(),
          .loads = counters_->loads.now(),
          .stores = counters_->stores.now()};
}

std::vector<std::shared_ptr<EngineMemory>> EngineMemories::all() const {
  std::vector<std::shared_ptr<EngineMemory>> engine_memories;
  MutexLock lock(mutex_);
  for (const auto& [name, memory] : engine_memories_) engine_memories.push_back(memory);
  return engine_memories;
}

bool EngineMemories::take_out(const std::shared_ptr<EngineMemory>& memory) {
  MutexLock lock(mutex_);
  const auto at = engine_memories_.find(memory->config().name);
  if (at == engine_memories_.end() || at->second != memory) return false;
  engine_memories_.erase(at);
  return true;
}

}  // namespace cairn
