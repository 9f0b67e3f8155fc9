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

// The engines that have registered memory, by name. Thread-safe.
class Agents {
 public:
  // An engine is a process or a few; each has its memory mapped here.
  static constexpr std::size_t kMaxAgents = 1024;
  // A lease that nobody asked for otherwise: as that of a match.
  static constexpr std::uint32_t kDefaultLeaseMs = 30'000;

  explicit Agents(std::shared_ptr<CacheServices> services);
  // Ends all of them; what is under way goes on until the engine has let go of it.
  ~Agents();
  Agents(const Agents&) = delete;
  Agents& operator=(const Agents&) = delete;

  struct Registered {
    AgentInfo agent;
    bool is_new = false;  // false: it was there, with the same memory, and its life begins anew
  };
  // Blocks on the kernel. agent_exists: with other memory, or another's; too_many; out_of_range for
  // lease_ms; as Agent::make.
  Result<Registered> put(AgentConfig config, const Agent::Terms& terms);
  // unknown_agent, also for another's.
  Result<AgentInfo> find(std::string_view name, const LeaseHolder& holder, bool sees_all) const;
  std::vector<AgentInfo> list(const LeaseHolder& holder, bool sees_all) const;  // by name
  // Nothing begins any more; what has not begun is cancelled. `gone` runs once its memory is given
  // back. unknown_agent: it does not run.
  Result<> remove(std::string_view name, const LeaseHolder& holder, bool sees_all,
                  UniqueFunction<void()> gone);

  // As load_to_agent() and store_from_agent(), of an agent of that holder's: unknown_agent.
  Result<TransferId> load(std::string_view name, const LeaseHolder& holder,
                          AgentCopyRequest request);
  Result<TransferId> store(std::string_view name, AgentStoreRequest request);
  // False where no agent's copy has that number.
  bool cancel(TransferId id);

  // Ends those whose lease is over or whose connection has gone.
  void tick();
  AgentStats stats() const;

 private:
  std::shared_ptr<Agent> look_up(std::string_view name, const LeaseHolder& holder,
                                 bool sees_all) const;  // or null
  Result<std::shared_ptr<Agent>> known(std::string_view name, const LeaseHolder& holder,
                                       bool sees_all) const;
  std::vector<std::shared_ptr<Agent>> all() const;
  // Takes it out, if it is still the one of its name. True where it did.
  bool take_out(const std::shared_ptr<Agent>& agent);

  const std::shared_ptr<CacheServices> services_;
  const std::shared_ptr<AgentCounters> counters_ = std::make_shared<AgentCounters>();
  // Outlives the agents: the last copy may hold one for longer than this is there.
  const std::shared_ptr<RegionRegistry> registry_ = std::make_shared<RegionRegistry>();
  Mutex registering_;  // one at a time, beside the look-ups
  std::uint64_t next_region_ CAIRN_GUARDED_BY(registering_) = 1;
  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<Agent>, std::less<>> agents_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
