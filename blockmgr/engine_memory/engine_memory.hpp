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
#include "blockmgr/engine_memory/engine_memory_types.hpp"
#include "blockmgr/index/memory_quota.hpp"
#include "layouts/block_layout.hpp"
#include "memory/device_runtime.hpp"
#include "memory/region_registry.hpp"
#include "memory/torn_guard.hpp"

namespace cairn {

class EngineCopy;

// The parts of the server that an agent uses.
struct EngineSources {
  DeviceRuntime& runtime;
  const Clock& clock;                        // must outlive the agent
  std::shared_ptr<RegionRegistry> registry;  // holds the agent's regions while it exists
  std::span<const std::filesystem::path> import_folders;
  std::shared_ptr<MemoryQuota> registered;  // counts the agent's host memory
  std::uint64_t first_region = 0;           // the first of its region ids in the registry
};

// Memory that an engine has registered. Its blocks have the engine's own numbers. The memory stays
// mapped until the last copy has ended. Thread-safe.
class EngineMemory {
 public:
  struct Terms {
    LeaseHolder holder = {};
    EngineTether tether = {};  // for memory passed as open files; nullopt: it has a lease instead
    std::uint32_t lease_ms = 0;
    std::shared_ptr<MemoryQuota> registered = {};  // of the caller that registers; null: none
  };
  // Maps each file once and builds the layout on the registered regions. Blocks in the kernel. Host
  // memory is counted against the quotas before it is mapped. Errors:
  // - forbidden: a path outside of the import folders.
  // - impossible, naming the region: memory of another kind, too small or misaligned.
  // - impossible_shape.
  // - no_capacity: the host memory exceeds a limit.
  // - state_conflict: another agent or a tier uses these bytes.
  // - those of DeviceRuntime::import_memory().
  static Result<std::shared_ptr<EngineMemory>> make(EngineMemoryConfig config,
                                                    const EngineSources& sources, Terms terms);
  ~EngineMemory();

  const EngineMemoryConfig& config() const { return config_; }
  const LeaseHolder& holder() const { return holder_; }
  // REQUIRES: the caller has a Use.
  const BlockLayout& layout() const { return *layout_; }
  // io_error if one of its files was truncated during a copy; bytes copied since are invalid.
  // REQUIRES: the caller has a Use.
  Result<> check_whole() const;
  // Checks that `asked` is equal and still means the same memory. Errors: agent_exists,
  // state_conflict.
  Result<> check_same(const EngineMemoryConfig& asked) const;
  // state_conflict if a region overlaps GPU bytes that this agent has by handle. Files need no
  // check: they are claimed by locks.
  Result<> check_apart(const EngineMemoryConfig& asked) const;
  EngineMemoryInfo info() const;

  // Keeps the memory mapped and the lease open. After its destructor, the holder must not touch the
  // memory.
  class Use {
   public:
    Use() = default;
    explicit Use(std::shared_ptr<EngineMemory> memory) : memory_(std::move(memory)) {}
    Use(Use&&) noexcept = default;
    Use& operator=(Use&& other) noexcept {
      end();
      memory_ = std::move(other.memory_);
      return *this;
    }
    ~Use() { end(); }
    void end();
    EngineMemory* operator->() const { return memory_.get(); }

   private:
    std::shared_ptr<EngineMemory> memory_;
  };
  // Errors: unknown_agent if it has ended; queue_full for more than kMaxCopies.
  static Result<Use> use(const std::shared_ptr<EngineMemory>& memory,
                         const std::shared_ptr<EngineCopy>& copy);

  // Restarts the lease, or binds the agent to another connection.
  void renew(const Terms& terms);
  // Returns true if its lease is over and nobody uses it, or if its connection is gone.
  bool is_overdue() const;
  // Ends the agent: refuses new copies and cancels those that have not started. `gone` runs once
  // the memory is released: now, or on the thread of the last copy.
  void end(UniqueFunction<void()> gone);
  // Cancels what has not started of a copy. Returns false if this agent has no such copy.
  bool cancel(TransferId id);

 private:
  EngineMemory(EngineMemoryConfig config, const EngineSources& sources, const Terms& terms);
  struct Sources {
    const EngineSources& server;
    const std::shared_ptr<MemoryQuota>& token;
  };
  Result<> map(std::span<const EngineMemoryConfig::Part> parts, const Sources& all);
  Result<> build(const EngineSources& sources);
  void take_terms(const Terms& terms) CAIRN_REQUIRES(mutex_);
  void give_memory_back();
  void let_go();
  std::vector<std::shared_ptr<EngineCopy>> copies() const;

  const EngineMemoryConfig config_;
  const LeaseHolder holder_;
  const Clock& clock_;
  const std::shared_ptr<RegionRegistry> registry_;
  const std::string device_uuid_;
  // Released once the agent has ended and the last use too; unchanged until then. Guards are
  // destroyed before the memory they guard.
  std::vector<MemoryQuotaShare> counted_;
  std::vector<Region> mapped_;
  std::vector<TornGuard> guards_;
  std::vector<std::size_t> file_of_region_;  // index into mapped_
  std::vector<RegionId> registered_;
  std::optional<BlockLayout> layout_;

  mutable Mutex mutex_;
  EngineTether tether_ CAIRN_GUARDED_BY(mutex_);
  std::uint32_t lease_ms_ CAIRN_GUARDED_BY(mutex_) = 0;
  TimePoint expires_at_ CAIRN_GUARDED_BY(mutex_);  // end of the lease
  bool ended_ CAIRN_GUARDED_BY(mutex_) = false;
  std::size_t uses_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::vector<std::weak_ptr<EngineCopy>> copies_ CAIRN_GUARDED_BY(mutex_);
  std::vector<UniqueFunction<void()>> gone_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
