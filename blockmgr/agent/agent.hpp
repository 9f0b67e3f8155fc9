#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "base/unique_function.hpp"
#include "blockmgr/agent/agent_types.hpp"
#include "blockmgr/index/memory_quota.hpp"
#include "layouts/block_layout.hpp"
#include "memory/device_runtime.hpp"
#include "memory/region_registry.hpp"
#include "memory/torn_guard.hpp"

namespace cairn {

class AgentCopy;

// Where an agent's regions come from.
struct AgentSources {
  DeviceRuntime& runtime;
  const Clock& clock;                        // outlives the agent
  std::shared_ptr<RegionRegistry> registry;  // its regions are there as long as it is
  std::span<const std::filesystem::path> import_folders;
  std::shared_ptr<MemoryQuota> registered;  // where its host memory counts
  std::uint64_t first_region = 0;           // the ids of its regions in the registry, from here on
};

// Memory of an engine's, in which blocks have the engine's own numbers, for as long as it is
// registered. Its memory stays mapped until the last copy has let go. Thread-safe.
class Agent {
 public:
  struct Terms {
    LeaseHolder holder = {};
    AgentTether tether = {};  // of memory that was passed as open files; nothing: it has a lease
    std::uint32_t lease_ms = 0;
    std::shared_ptr<MemoryQuota> registered = {};  // of whoever registers it; null: none
  };
  // Maps every file once and builds the layout on the registered regions. Blocks on the kernel.
  // forbidden for a path outside of the folders; impossible, naming the region, for memory of
  // another kind, too small or misaligned; impossible_shape; no_capacity where its host memory
  // would be over a limit: it is counted before it is mapped; state_conflict for bytes that another
  // agent or tier lies in; as DeviceRuntime::import_memory.
  static Result<std::shared_ptr<Agent>> make(AgentConfig config, const AgentSources& sources,
                                             Terms terms);
  ~Agent();

  const AgentConfig& config() const { return config_; }
  const LeaseHolder& holder() const { return holder_; }
  // REQUIRES: a use.
  const BlockLayout& layout() const { return *layout_; }
  // True until a file of it was cut off under a copy; those bytes count for nothing. REQUIRES: a
  // use.
  Result<> check_whole() const;
  // As `asked` says, and still the same memory: agent_exists, state_conflict.
  Result<> check_same(const AgentConfig& asked) const;
  // state_conflict where a region would lie in bytes of a GPU's that this agent has: files are
  // claimed by locks, handles by this.
  Result<> check_apart(const AgentConfig& asked) const;
  AgentInfo info() const;

  // Keeps the memory mapped, and the lease from ending; given back by its destructor, which is the
  // last that anybody does with the memory.
  class Use {
   public:
    Use() = default;
    explicit Use(std::shared_ptr<Agent> agent) : agent_(std::move(agent)) {}
    Use(Use&&) noexcept = default;
    Use& operator=(Use&& other) noexcept {
      end();
      agent_ = std::move(other.agent_);
      return *this;
    }
    ~Use() { end(); }
    void end();
    Agent* operator->() const { return agent_.get(); }

   private:
    std::shared_ptr<Agent> agent_;
  };
  // unknown_agent where it has ended; queue_full: kMaxCopies.
  static Result<Use> use(const std::shared_ptr<Agent>& agent,
                         const std::shared_ptr<AgentCopy>& copy);

  // Its lease begins anew, or it goes with that connection.
  void renew(const Terms& terms);
  // Its lease is over and nobody uses it, or its connection has gone.
  bool is_overdue() const;
  // Nothing begins any more, and what has not begun is cancelled. `gone` runs once the memory is
  // given back: now, or on the thread of the last copy.
  void end(UniqueFunction<void()> gone);
  // Of a copy of this agent that is under way: what has not begun is cancelled. False where there
  // is none.
  bool cancel(TransferId id);

 private:
  Agent(AgentConfig config, const AgentSources& sources, const Terms& terms);
  struct Sources {
    const AgentSources& server;
    const std::shared_ptr<MemoryQuota>& token;
  };
  Result<> map(std::span<const AgentConfig::Part> parts, const Sources& all);
  Result<> build(const AgentSources& sources);
  void take_terms(const Terms& terms) CAIRN_REQUIRES(mutex_);
  void give_memory_back();
  void let_go();
  std::vector<std::shared_ptr<AgentCopy>> copies() const;

  const AgentConfig config_;
  const LeaseHolder holder_;
  const Clock& clock_;
  const std::shared_ptr<RegionRegistry> registry_;
  const std::string device_uuid_;
  // Given back when it has ended and the last use too; not changed before that. Guards go before
  // what they guard.
  std::vector<MemoryQuotaShare> counted_;
  std::vector<Region> mapped_;
  std::vector<TornGuard> guards_;
  std::vector<std::size_t> file_of_region_;  // in mapped_
  std::vector<RegionId> registered_;
  std::optional<BlockLayout> layout_;

  mutable Mutex mutex_;
  AgentTether tether_ CAIRN_GUARDED_BY(mutex_);
  std::uint32_t lease_ms_ CAIRN_GUARDED_BY(mutex_) = 0;
  TimePoint expires_at_ CAIRN_GUARDED_BY(mutex_);  // of the lease
  bool ended_ CAIRN_GUARDED_BY(mutex_) = false;
  std::size_t uses_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::vector<std::weak_ptr<AgentCopy>> copies_ CAIRN_GUARDED_BY(mutex_);
  std::vector<UniqueFunction<void()>> gone_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
