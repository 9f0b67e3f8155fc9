#pragma once

#include <cstdint>

#include "memory/device_runtime.hpp"
#include "memory/storage_kind.hpp"

namespace cairn {

// How the bytes of a memory-to-memory job move. Jobs with a side on disk use DiskIo for that side,
// and count it as pinned memory where a strategy asks what the sides are.
enum class CopyStrategy : std::uint8_t {
  automatic,  // chosen by the engine from the storage kinds
  sync,       // on a worker thread, by the CPU; both sides host-accessible
  stream,     // asynchronously on a runtime stream, the event waited for
  polling,    // on a runtime stream, the event asked every polling interval
  unified,    // prefetched to where it will be used, then copied on a stream; one side unified
};

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

struct StorageKinds {
  StorageKind source;
  StorageKind destination;
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

// A pure function of its arguments. No kernel reads or writes host memory unless host and device
// see it alike: what the copy engine moves is visible by the driver's own doing, what a kernel
// moves only by that.
CopyForm choose_form(const CopyFacts& facts, const CopyThresholds& thresholds,
                     MemoryVisibility visibility);

}  // namespace cairn
