#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "memory/device_runtime.hpp"
#include "memory/storage_kind.hpp"

namespace cairn {

// The ways that bytes take to, from and within devices.
enum class CopyWay : std::uint8_t { load, store, device };
inline constexpr CopyWay kCopyWays[] = {CopyWay::load, CopyWay::store, CopyWay::device};
std::string_view to_string(CopyWay way);

struct StorageKinds {
  StorageKind source;
  StorageKind destination;
};

// A disk counts as host memory: its bytes pass through it. Nothing where no device takes part.
std::optional<CopyWay> way_of(StorageKinds kinds);

// How the bytes of a job move, and how their arrival is known.
enum class CopyStrategy : std::uint8_t {
  automatic,  // chosen by the engine from the storage kinds
  // By the CPU where no device takes part; else on a stream that the thread waits for in the
  // runtime, and nothing is issued meanwhile.
  sync,
  async,    // on a stream, an event behind each batch; the next batch is issued while one runs
  polling,  // the same, but the thread itself asks the event every polling interval
  unified,  // as async; unified memory first goes to where it will be used
};
inline constexpr std::size_t kNumCopyStrategies = 5;
std::string_view to_string(CopyStrategy strategy);  // `automatic` is "auto"

// What is wanted for each way.
struct CopyStrategies {
  CopyStrategy load = CopyStrategy::automatic;
  CopyStrategy store = CopyStrategy::automatic;
  CopyStrategy device = CopyStrategy::automatic;

  CopyStrategy of(CopyWay way) const;
  friend bool operator==(const CopyStrategies&, const CopyStrategies&) = default;
};

// The strategy of a job between these kinds of memory, never `automatic`. `unified` wanted for two
// sides of which none is unified memory is decided as `automatic` is.
CopyStrategy choose_strategy(StorageKinds kinds, const CopyStrategies& wanted);

// Which form of copy suits pieces of which number and size; one set for each way that bytes take.
// `cairn-calibrate` measures what a machine prefers.
struct FormThresholds {
  // Fewer are copied one by one.
  std::uint32_t batch_least_pieces = 4;
  // A kernel copies this many pieces and more, of this many bytes at most on average; 0 bytes:
  // none.
  std::uint32_t kernel_least_pieces = 64;
  std::uint64_t kernel_most_piece_bytes = 0;
  // Rows where a run of pieces at even distances has this many on average; 0: never.
  std::uint32_t rows_least_rows = 0;

  friend bool operator==(const FormThresholds&, const FormThresholds&) = default;
};

struct CopyThresholds {
  // Below 28 KiB the engine that copies over the bus spends more on each piece than on its bytes; a
  // kernel has all of them under way at once.
  FormThresholds load{.kernel_most_piece_bytes = 28 << 10};
  FormThresholds store;
  // Within a device, where a piece is over before the copy engine has looked at the next.
  FormThresholds device{.kernel_least_pieces = 16, .kernel_most_piece_bytes = 1 << 20};

  friend bool operator==(const CopyThresholds&, const CopyThresholds&) = default;
};

struct CopyFacts {
  StorageKinds kinds;
  std::uint64_t pieces = 0;  // after neighbours were merged
  std::uint64_t bytes = 0;
  // Of the pieces, the runs at even distances; 0: not counted.
  std::uint64_t strided_runs = 0;
};

// The thresholds for a way; null where there is only one form: the CPU or the driver does it.
const FormThresholds* thresholds_of(StorageKinds kinds, const CopyThresholds& thresholds);

// A pure function of its arguments. Under MemoryVisibility::device no kernel reads or writes host
// memory: what it moves there nobody promises to the other side. Elsewhere CUDA does, for
// registered memory: what the CPU wrote before a launch the kernel sees, and what the kernel wrote
// the CPU sees once an event behind it is reached.
CopyForm choose_form(const CopyFacts& facts, const CopyThresholds& thresholds,
                     MemoryVisibility visibility);

}  // namespace cairn
