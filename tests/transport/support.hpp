#pragma once

#include <cstddef>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "layouts/block_layout.hpp"
#include "memory/device_runtime.hpp"
#include "tests/fakes/temp_dir.hpp"
#include "transport/transfer/transfer_scheduler.hpp"

namespace cairn::test {

inline constexpr StorageKind kAllKinds[] = {StorageKind::system, StorageKind::pinned,
                                            StorageKind::device, StorageKind::unified,
                                            StorageKind::disk};

// The layouts to test with every pair of kinds.
enum class Arrangement : std::uint8_t { contiguous, layer_first, layer_second, padded };
inline constexpr Arrangement kAllArrangements[] = {Arrangement::contiguous,
                                                   Arrangement::layer_first,
                                                   Arrangement::layer_second, Arrangement::padded};
std::string_view to_string(Arrangement arrangement);

using Bytes = std::vector<std::byte>;

// A block's bytes in canonical order. They differ from block to block and from byte to byte.
Bytes pattern(std::uint64_t seed, std::uint64_t size_bytes);

// Like ==, but faster: sanitizers make a byte-by-byte comparison of large blocks slow.
bool same(const Bytes& a, const Bytes& b);

// Makes layouts in every kind of storage, and accesses their bytes without the scheduler.
class Storage {
 public:
  Storage();
  DeviceRuntime& runtime() { return *runtime_; }

  // 3 layers, 2 outer, pieces of 40 bytes: small, and no size is a power of two.
  static LayoutConfig small_shape(std::uint64_t num_blocks);

  // Sets every byte, padding included, to kUntouched. On disk, blocks lie one after the other in a
  // slot file, for any arrangement.
  BlockLayout make(StorageKind kind, Arrangement arrangement, LayoutConfig shape);
  static constexpr std::byte kUntouched{0xEE};

  void write_block(const BlockLayout& layout, std::uint32_t block, const Bytes& canonical);
  Bytes read_block(const BlockLayout& layout, std::uint32_t block);
  // All bytes of all regions, padding included.
  std::vector<Bytes> image(const BlockLayout& layout);

  // A job between layouts of this storage.
  TransferJob make_job(const BlockLayout& source, const BlockLayout& destination,
                       std::vector<BlockPair> pairs) const;

 private:
  enum class Direction { read, write };
  void access(Direction direction, const RegionView& region, std::uint64_t offset_bytes,
              std::span<std::byte> bytes);
  BlockLayout make_slot_file(LayoutConfig shape);
  // null if it is not on disk or not of this storage
  SlotContents* slots_of(const BlockLayout& layout) const;
  void access_block(Direction direction, const BlockLayout& layout, std::uint32_t block,
                    std::span<std::byte> canonical);

  fakes::TempDir folder_;
  std::unique_ptr<DeviceRuntime> runtime_;
  std::unique_ptr<Stream> stream_;
  std::uint32_t files_ = 0;
  std::map<int, std::unique_ptr<SlotContents>> slots_;  // by their file's descriptor
};

// A submitted job and the future of its outcome.
struct PendingJob {
  JobId id;
  std::future<JobOutcome> outcome;
};
PendingJob submit(TransferScheduler& scheduler, TransferJob job);
JobOutcome run(TransferScheduler& scheduler, TransferJob job);

// 0 -> 0, 1 -> 1, …
std::vector<BlockPair> straight_pairs(std::uint32_t count);

}  // namespace cairn::test
