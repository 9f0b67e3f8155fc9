#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.hpp"
#include "blockmgr/engine_memory/engine_copy.hpp"
#include "blockmgr/engine_memory/engine_memory.hpp"

namespace cairn {

// The registered agents, by name. Thread-safe.
class EngineMemories {
 public:
  // An engine has one process or a few, each with its memory mapped here.
  static constexpr std::size_t kMaxEngineMemories = 1024;
  // The default, the same as for a match.
  static constexpr std::uint32_t kDefaultLeaseMs = 30'000;

  explicit EngineMemories(std::shared_ptr<CacheServices> services);
  // Ends all agents. A copy in progress goes on and keeps its agent's memory until it ends.
  ~EngineMemories();
  EngineMemories(const EngineMemories&) = delete;
  EngineMemories& operator=(const EngineMemories&) = delete;

  struct Registered {
    EngineMemoryInfo memory;
    bool is_new = false;  // false: it existed with the same memory, and was renewed
  };
  // Registers an agent, or renews it. Blocks in the kernel. Errors: agent_exists with other memory
  // or of another holder; too_many; out_of_range for lease_ms; those of Agent::make().
  Result<Registered> put(EngineMemoryConfig config, const EngineMemory::Terms& terms);
  // unknown_agent also for another holder's agent.
  Result<EngineMemoryInfo> find(std::string_view name, const LeaseHolder& holder,
                                bool sees_all) const;
  std::vector<EngineMemoryInfo> list(const LeaseHolder& holder,
                                     bool sees_all) const;  // sorted by name
  // Ends the agent, see Agent::end(). `gone` does not run after an error. Error: unknown_agent.
  Result<> remove(std::string_view name, const LeaseHolder& holder, bool sees_all,
                  UniqueFunction<void()> gone);

  // See load_to_engine() and store_from_engine(). unknown_agent also for another holder's agent.
  Result<TransferId> load(std::string_view name, const LeaseHolder& holder,
                          EngineCopyRequest request);
  Result<TransferId> store(std::string_view name, EngineStoreRequest request);
  // Returns false if no agent has a copy with this id.
  bool cancel(TransferId id);

  // Ends agents whose lease is over or whose connection is gone.
  void tick();
  EngineMemoryStats stats() const;

 private:
  std::shared_ptr<EngineMemory> look_up(std::string_view name, const LeaseHolder& holder,
                                        bool sees_all) const;  // null if not found
  Result<std::shared_ptr<EngineMemory>> known(std::string_view name, const LeaseHolder& holder,
                                              bool sees_all) const;
  std::vector<std::shared_ptr<EngineMemory>> all() const;
  // Removes the agent if its name still belongs to it. Returns true if removed.
  bool take_out(const std::shared_ptr<EngineMemory>& memory);

  const std::shared_ptr<CacheServices> services_;
  const std::shared_ptr<EngineMemoryCounters> counters_ = std::make_shared<EngineMemoryCounters>();
  // The last copy may keep an agent, and so the registry, longer than this object.
  const std::shared_ptr<RegionRegistry> registry_ = std::make_shared<RegionRegistry>();
  Mutex registering_;  // serializes registrations; look-ups do not wait for it
  std::uint64_t next_region_ CAIRN_GUARDED_BY(registering_) = 1;
  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<EngineMemory>, std::less<>> engine_memories_
      CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
