#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "memory/device_runtime.hpp"
#include "memory/storage_kind.hpp"

namespace cairn {

// Directions of a copy: to a device, from a device, between devices.
enum class CopyWay : std::uint8_t { load, store, device };
inline constexpr CopyWay kCopyWays[] = {CopyWay::load, CopyWay::store, CopyWay::device};
std::string_view to_string(CopyWay way);

struct StorageKinds {
  StorageKind source;
  StorageKind destination;
};

// Returns nullopt if no device takes part. A disk counts as host memory, because its data passes
// through it.
std::optional<CopyWay> way_of(StorageKinds kinds);

// How a job's data moves, and how the scheduler learns that it has arrived.
enum class CopyStrategy : std::uint8_t {
  automatic,  // the scheduler chooses by storage kinds
  // Without a device: the CPU copies. Else: on a stream; the thread waits in the runtime and issues
  // nothing meanwhile.
  sync,
  async,    // on a stream, an event after each batch; issues the next batch while one runs
  polling,  // like async, but the thread polls the event at an interval
  unified,  // like async; unified memory is first moved to where it will be used
};
inline constexpr std::size_t kNumCopyStrategies = 5;
std::string_view to_string(CopyStrategy strategy);  // `automatic` is "auto"

// The strategy wanted for each way.
struct CopyStrategies {
  CopyStrategy load = CopyStrategy::automatic;
  CopyStrategy store = CopyStrategy::automatic;
  CopyStrategy device = CopyStrategy::automatic;

  CopyStrategy of(CopyWay way) const;
  friend bool operator==(const CopyStrategies&, const CopyStrategies&) = default;
};

// Returns the strategy for a job between these storage kinds, never `automatic`. Treats `unified`
// as `automatic` if neither side is unified memory.
CopyStrategy choose_strategy(StorageKinds kinds, const CopyStrategies& wanted);

// Thresholds that choose the form of a copy by number and size of its pieces; one set per way.
// Measure them for a machine with `cairn-calibrate`.
struct FormThresholds {
  // Fewer pieces are copied one by one.
  std::uint32_t batch_least_pieces = 4;
  // A kernel copies at least this many pieces of at most this average size; 0 bytes: never.
  std::uint32_t kernel_least_pieces = 64;
  std::uint64_t kernel_most_piece_bytes = 0;
  // Copies rows if runs of evenly spaced pieces have at least this average length; 0: never.
  std::uint32_t rows_least_rows = 0;

  friend bool operator==(const FormThresholds&, const FormThresholds&) = default;
};

struct CopyThresholds {
  // Below 28 KiB the copy engine spends more time per piece than on its bytes; a kernel moves all
  // pieces at once.
  FormThresholds load{.kernel_most_piece_bytes = 28 << 10};
  FormThresholds store;
  // Within a device, a piece is copied before the copy engine has started the next.
  FormThresholds device{.kernel_least_pieces = 16, .kernel_most_piece_bytes = 1 << 20};

  friend bool operator==(const CopyThresholds&, const CopyThresholds&) = default;
};

struct CopyFacts {
  StorageKinds kinds;
  std::uint64_t pieces = 0;  // after merging neighbours
  std::uint64_t bytes = 0;
  // Runs of evenly spaced pieces; 0: not counted.
  std::uint64_t strided_runs = 0;
};

// Returns null if there is no choice: the CPU or the driver copies.
const FormThresholds* thresholds_of(StorageKinds kinds, const CopyThresholds& thresholds);

// Pure function. With MemoryVisibility::device it never uses a kernel for host memory, because such
// accesses are not visible to the other side. Otherwise CUDA guarantees visibility for registered
// memory: the kernel sees what the CPU wrote before the launch, and the CPU sees the kernel's
// writes after an event behind it.
CopyForm choose_form(const CopyFacts& facts, const CopyThresholds& thresholds,
                     MemoryVisibility visibility);

}  // namespace cairn
