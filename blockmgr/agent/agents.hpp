#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.hpp"
#include "blockmgr/agent/agent.hpp"
#include "blockmgr/agent/agent_copy.hpp"

namespace cairn {

// The registered agents, by name. Thread-safe.
class Agents {
 public:
  // An engine has one process or a few, each with its memory mapped here.
  static constexpr std::size_t kMaxAgents = 1024;
  // The default, the same as for a match.
  static constexpr std::uint32_t kDefaultLeaseMs = 30'000;

  explicit Agents(std::shared_ptr<CacheServices> services);
  // Ends all agents. A copy in progress goes on and keeps its agent's memory until it ends.
  ~Agents();
  Agents(const Agents&) = delete;
  Agents& operator=(const Agents&) = delete;

  struct Registered {
    AgentInfo agent;
    bool is_new = false;  // false: it existed with the same memory, and was renewed
  };
  // Registers an agent, or renews it. Blocks in the kernel. Errors: agent_exists with other memory
  // or of another holder; too_many; out_of_range for lease_ms; those of Agent::make().
  Result<Registered> put(AgentConfig config, const Agent::Terms& terms);
  // unknown_agent also for another holder's agent.
  Result<AgentInfo> find(std::string_view name, const LeaseHolder& holder, bool sees_all) const;
  std::vector<AgentInfo> list(const LeaseHolder& holder, bool sees_all) const;  // sorted by name
  // Ends the agent, see Agent::end(). `gone` does not run after an error. Error: unknown_agent.
  Result<> remove(std::string_view name, const LeaseHolder& holder, bool sees_all,
                  UniqueFunction<void()> gone);

  // See load_to_agent() and store_from_agent(). unknown_agent also for another holder's agent.
  Result<TransferId> load(std::string_view name, const LeaseHolder& holder,
                          AgentCopyRequest request);
  Result<TransferId> store(std::string_view name, AgentStoreRequest request);
  // Returns false if no agent has a copy with this id.
  bool cancel(TransferId id);

  // Ends agents whose lease is over or whose connection is gone.
  void tick();
  AgentStats stats() const;

 private:
  std::shared_ptr<Agent> look_up(std::string_view name, const LeaseHolder& holder,
                                 bool sees_all) const;  // null if not found
  Result<std::shared_ptr<Agent>> known(std::string_view name, const LeaseHolder& holder,
                                       bool sees_all) const;
  std::vector<std::shared_ptr<Agent>> all() const;
  // Removes the agent if its name still belongs to it. Returns true if removed.
  bool take_out(const std::shared_ptr<Agent>& agent);

  const std::shared_ptr<CacheServices> services_;
  const std::shared_ptr<AgentCounters> counters_ = std::make_shared<AgentCounters>();
  // The last copy may keep an agent, and so the registry, longer than this object.
  const std::shared_ptr<RegionRegistry> registry_ = std::make_shared<RegionRegistry>();
  Mutex registering_;  // serializes registrations; look-ups do not wait for it
  std::uint64_t next_region_ CAIRN_GUARDED_BY(registering_) = 1;
  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<Agent>, std::less<>> agents_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
