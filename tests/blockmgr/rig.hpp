#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "blockmgr/block_manager.hpp"
#include "tests/fakes/manual_clock.hpp"
#include "tests/fakes/temp_dir.hpp"

namespace cairn::testing {

using Bytes = std::vector<std::byte>;

// A key of 8 bytes that encodes the number; `length` up to 64 pads it.
BlockKey key(std::uint64_t number, std::size_t length = 8);
std::vector<BlockKey> keys(std::uint64_t first, std::size_t count);
std::vector<KeyView> views(const std::vector<BlockKey>& keys);

// 64 bytes per block, in four pieces of 16.
LayoutConfig small_shape();

struct TierSizes {
  std::uint32_t device = 0;
  std::uint32_t pinned = 0;
  std::uint32_t disk = 0;
};
CacheConfig small_cache(TierSizes sizes, OffloadMode offload = OffloadMode::on_evict);

// A block manager over real parts with a clock that stands still.
class Rig {
 public:
  struct Parts {
    std::unique_ptr<DeviceRuntime> runtime = {};  // null: the host runtime
    std::function<std::unique_ptr<DiskIo>(std::unique_ptr<DiskIo>)> disk =
        {};  // wraps the real one
    BlockManagerOptions options = {};
    std::uint32_t workers = 2;  // 1: jobs end in the order they began
    std::uint32_t max_queued_jobs = 1024;
    CopyThresholds copy_forms = {};
  };
  Rig() : Rig(Parts{}) {}
  explicit Rig(Parts parts);

  std::shared_ptr<Cache> cache(const CacheConfig& config);

  // Runs a call that ends with a Done, waits for the scheduler, and returns the result.
  template <class T, class Call>
  Result<T> await(Call&& call) {
    auto answer = std::make_shared<std::optional<Result<T>>>();
    call(Done<T>([answer](Result<T> result) { answer->emplace(std::move(result)); }));
    scheduler->wait_idle();
    if (!*answer) return Error{ErrorCode::internal, "there was no answer"};
    return std::move(**answer);
  }

  Result<Allocation> allocate(Cache& cache, const AllocateRequest& request);
  Result<> write(Cache& cache, const Cache::WriteTarget& target, const Bytes& bytes);
  Result<std::vector<CommitStatus>> commit(Cache& cache, const LeaseId& lease,
                                           std::vector<CommitBlock> blocks);
  Result<EvictResult> evict(Cache& cache, std::vector<BlockKey> keys, std::optional<Tier> tier);
  Result<Bytes> read(Cache& cache, const BlockKey& key, BlockPart part = {});
  TransferStatus transfer(Cache& cache, TransferRequest request);

  // Allocates, writes each key's own bytes, commits as one chain below `parent`, and releases.
  struct Put {
    std::vector<BlockKey> keys;
    Tier tier = Tier::pinned;
    std::optional<BlockKey> parent = {};
    std::uint8_t priority = 50;
    std::optional<std::uint64_t> ttl_ms = {};
    LeaseHolder holder = {};
    Bytes (*bytes)(const BlockKey& key, std::uint64_t size) = nullptr;  // null: bytes_of
  };
  Result<> put(Cache& cache, const Put& what);

  MatchResult match(Cache& cache, const std::vector<BlockKey>& keys,
                    std::optional<std::uint32_t> lease_ms = {});

  fakes::ManualClock clock;
  fakes::TempDir dir;
  std::unique_ptr<DeviceRuntime> runtime;
  std::unique_ptr<DiskIo> disk;
  std::unique_ptr<Logger> log;
  std::unique_ptr<TransferScheduler> scheduler;
  std::unique_ptr<BlockManager> manager;
};

// The bytes of the key's block, which depend only on the key.
Bytes bytes_of(const BlockKey& key, std::uint64_t size = 64);
// The keys that lie in a tier.
std::vector<BlockKey> present_in(const Cache& cache, Tier tier);
bool is_in(const Cache& cache, Tier tier, const BlockKey& key);
std::uint64_t count(const Cache& cache, Tier tier, SlotState state);

}  // namespace cairn::testing
