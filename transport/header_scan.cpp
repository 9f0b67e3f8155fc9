#include <algorithm>
#include <cstring>
#include <optional>
#include <thread>

#include "base/mutex.hpp"
#include "transport/slot_file.hpp"

namespace cairn {
namespace {

// Headers are pages far from each other: a disk reads many at a time as fast as one.
constexpr std::size_t kScanThreads = 8;
// Of one thread, read in one call: 1 MiB of memory.
constexpr std::uint32_t kBatch = 256;

// Batches of slots, handed out to the threads in turn.
class Scan {
 public:
  Scan(DiskIo& disk, const BlockLayout& layout, const DiskSlots& slots)
      : disk_(disk), layout_(layout), slots_(slots) {}

  void work() {
    auto memory = Region::system(kBatch * kSlotHeaderBytes);
    if (!memory) return fail(memory.error());
    while (true) {
      std::uint32_t first = 0;
      {
        MutexLock lock(mutex_);
        if (error_ || next_ >= slots_.num_slots()) return;
        first = next_;
        next_ += std::min(kBatch, slots_.num_slots() - next_);
      }
      const std::uint32_t count = std::min(kBatch, slots_.num_slots() - first);
      if (auto read = read_batch(first, count, memory->data()); !read) return fail(read.error());
      keep(first, count, memory->data());
    }
  }

  Result<HeaderScan> take() {
    MutexLock lock(mutex_);
    if (error_) return *error_;
    std::ranges::sort(found_.headers, {}, &SlotHeader::slot);
    return std::move(found_);
  }

 private:
  Result<> read_batch(std::uint32_t first, std::uint32_t count, std::byte* memory) {
    const auto regions = layout_.regions();
    for (std::size_t i = 0; i < regions.size(); ++i) {
      std::vector<DiskRun> runs;
      for (std::uint32_t slot = first; slot < first + count; ++slot) {
        const PieceLocation at = layout_.geometry().locate({.block = slot});
        if (at.region != i) continue;
        runs.push_back({memory + (slot - first) * kSlotHeaderBytes,
                        regions[i].file_offset_bytes() + at.offset_bytes - kSlotHeaderBytes,
                        kSlotHeaderBytes});
      }
      if (!runs.empty()) CAIRN_TRY(disk_.read(regions[i].fd(), runs));
    }
    return {};
  }

  void keep(std::uint32_t first, std::uint32_t count, const std::byte* memory) {
    std::vector<SlotHeader> headers;
    std::uint64_t torn = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::span<const std::byte, kSlotHeaderBytes> page(memory + i * kSlotHeaderBytes,
                                                              kSlotHeaderBytes);
      if (std::ranges::all_of(page, [](std::byte b) { return b == std::byte{0}; })) continue;
      auto header = decode_slot_header(page);
      const bool ours = header && header->file_id == slots_.file_id() &&
                        header->slot == first + i &&
                        header->data_bytes == layout_.geometry().block_bytes();
      if (!ours) {
        ++torn;
      } else if (!header->label.key.empty()) {
        headers.push_back(std::move(*header));
      }
    }
    MutexLock lock(mutex_);
    found_.torn += torn;
    found_.headers.insert(found_.headers.end(), std::make_move_iterator(headers.begin()),
                          std::make_move_iterator(headers.end()));
  }

  void fail(const Error& error) {
    MutexLock lock(mutex_);
    if (!error_) error_ = error;
  }

  DiskIo& disk_;
  const BlockLayout& layout_;
  const DiskSlots& slots_;
  Mutex mutex_;
  std::uint32_t next_ CAIRN_GUARDED_BY(mutex_) = 0;
  HeaderScan found_ CAIRN_GUARDED_BY(mutex_);
  std::optional<Error> error_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace

Result<HeaderScan> scan_headers(DiskIo& disk, const BlockLayout& layout, const DiskSlots& slots) {
  Scan scan(disk, layout, slots);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kScanThreads; ++i) threads.emplace_back([&scan] { scan.work(); });
  for (std::thread& thread : threads) thread.join();
  return scan.take();
}

}  // namespace cairn
