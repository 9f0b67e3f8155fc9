#include "transport/io/header_scan.hpp"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <optional>

#include "base/checked.hpp"
#include "base/hash.hpp"
#include "base/mutex.hpp"
#include "base/thread.hpp"

namespace cairn {
namespace {

// Headers are pages far from each other: a disk reads many at a time as fast as one.
constexpr std::size_t kScanThreads = 8;
// Of one thread, read in one call: 1 MiB of memory.
constexpr std::size_t kBatch = 256;

std::uint64_t header_offset(const RegionView& file, const PieceLocation& block) {
  return file.file_offset_bytes() + block.offset_bytes - kSlotHeaderBytes;
}

// Batches of slots, handed out to the threads in turn.
class Scan {
 public:
  Scan(const DiskTierSlots& tier, std::span<const std::uint32_t> slots)
      : tier_(tier), slots_(slots) {}

  void work() {
    auto memory = Region::system(kBatch * kSlotHeaderBytes);
    if (!memory) return fail(memory.error());
    while (true) {
      std::span<const std::uint32_t> batch;
      {
        MutexLock lock(mutex_);
        if (error_ || next_ >= slots_.size()) return;
        batch = slots_.subspan(next_, std::min(kBatch, slots_.size() - next_));
        next_ += batch.size();
      }
      if (auto read = read_batch(batch, memory->data()); !read) return fail(read.error());
      keep(batch, memory->data());
    }
  }

  Result<HeaderScan> take() {
    MutexLock lock(mutex_);
    if (error_) return *error_;
    std::ranges::sort(found_.headers, {}, &SlotHeader::slot);
    return std::move(found_);
  }

 private:
  Result<> read_batch(std::span<const std::uint32_t> batch, std::byte* memory) {
    const auto regions = tier_.layout.regions();
    for (std::size_t i = 0; i < regions.size(); ++i) {
      std::vector<DiskRun> runs;
      for (std::size_t n = 0; n < batch.size(); ++n) {
        const PieceLocation at = tier_.layout.geometry().locate({.block = batch[n]});
        if (at.region != i) continue;
        runs.push_back(
            {memory + n * kSlotHeaderBytes, header_offset(regions[i], at), kSlotHeaderBytes});
      }
      if (!runs.empty()) CAIRN_TRY(tier_.disk.read(regions[i].fd(), runs));
    }
    return {};
  }

  void keep(std::span<const std::uint32_t> batch, const std::byte* memory) {
    std::vector<SlotHeader> headers;
    std::uint64_t torn = 0;
    for (std::size_t n = 0; n < batch.size(); ++n) {
      const std::span<const std::byte, kSlotHeaderBytes> page(memory + n * kSlotHeaderBytes,
                                                              kSlotHeaderBytes);
      if (std::ranges::all_of(page, [](std::byte b) { return b == std::byte{0}; })) continue;
      auto header = decode_slot_header(page);
      const bool ours = header && header->file_id == tier_.slots.file_id() &&
                        header->slot == batch[n] &&
                        header->data_bytes == tier_.layout.geometry().block_bytes();
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

  const DiskTierSlots tier_;
  const std::span<const std::uint32_t> slots_;
  Mutex mutex_;
  std::size_t next_ CAIRN_GUARDED_BY(mutex_) = 0;
  HeaderScan found_ CAIRN_GUARDED_BY(mutex_);
  std::optional<Error> error_ CAIRN_GUARDED_BY(mutex_);
};

bool is_whole(const DiskTierSlots& tier, const ClaimedBlock& block, std::span<std::byte> memory) {
  const PieceLocation at = tier.layout.geometry().locate({.block = block.slot});
  const RegionView& file = tier.layout.regions()[at.region];
  const DiskRun run{memory.data(), file.file_offset_bytes() + at.offset_bytes, memory.size()};
  // Where it cannot be read now it may be later: an older block in its place could be wrong.
  if (!tier.disk.read(file.fd(), {&run, 1})) return true;
  return hash_bytes(memory.first(tier.layout.geometry().block_bytes()), 0) == block.data_checksum;
}

// On as many of kScanThreads as there are to be had, this one among them. An error where one threw.
template <class Work>
Result<> on_scan_threads(const Work& work) {
  std::atomic<bool> threw{false};
  const auto run = [&] {
    if (!guarded("header scan", work)) threw = true;
  };
  {
    std::vector<Thread> helpers;  // joined at the end
    for (std::size_t i = 1; i < kScanThreads; ++i) {
      auto helper = Thread::start("header scan", [&run](const std::stop_token&) { run(); });
      if (!helper) break;
      helpers.push_back(std::move(*helper));
    }
    run();
  }
  if (threw) return Error{ErrorCode::no_capacity, "there is no memory to read the slots"};
  return {};
}

}  // namespace

Result<HeaderScan> scan_headers(const DiskTierSlots& tier) {
  std::vector<std::uint32_t> all(tier.slots.num_slots());
  std::iota(all.begin(), all.end(), 0u);
  return scan_headers(tier, all);
}

Result<HeaderScan> scan_headers(const DiskTierSlots& tier, std::span<const std::uint32_t> slots) {
  Scan scan(tier, slots);
  CAIRN_TRY(on_scan_threads([&] { scan.work(); }));
  return scan.take();
}

Result<std::vector<bool>> are_whole(const DiskTierSlots& tier,
                                    std::span<const ClaimedBlock> blocks) {
  // On disk a block lies in one piece, which direct I/O reads in whole pages.
  const std::uint64_t size_bytes =
      checked_align_up(tier.layout.geometry().block_bytes(), kSlotHeaderBytes).value();
  std::vector<Region> memory;
  for (std::size_t i = 0; i < kScanThreads; ++i) {
    auto region = Region::system(size_bytes);
    if (!region) return std::move(region).error();
    memory.push_back(std::move(*region));
  }
  std::vector<std::uint8_t> whole(blocks.size());  // written by several threads
  std::atomic<std::size_t> next_memory{0};
  std::atomic<std::size_t> next{0};
  CAIRN_TRY(on_scan_threads([&] {
    const std::span<std::byte> mine(memory[next_memory++].data(), size_bytes);
    for (std::size_t i = next++; i < blocks.size(); i = next++) {
      whole[i] = is_whole(tier, blocks[i], mine) ? 1 : 0;
    }
  }));
  return std::vector<bool>(whole.begin(), whole.end());
}

Result<> write_headers(const DiskTierSlots& tier, std::span<const SlotHeader> headers) {
  auto memory = Region::system(kSlotHeaderBytes);
  if (!memory) return std::move(memory).error();
  for (const SlotHeader& header : headers) {
    encode_slot_header(header,
                       std::span<std::byte, kSlotHeaderBytes>(memory->data(), kSlotHeaderBytes));
    const PieceLocation at =
        tier.layout.geometry().locate({.block = static_cast<std::uint32_t>(header.slot)});
    const RegionView& file = tier.layout.regions()[at.region];
    const DiskRun run{memory->data(), header_offset(file, at), kSlotHeaderBytes};
    CAIRN_TRY(tier.disk.write(file.fd(), {&run, 1}));
  }
  return {};
}

}  // namespace cairn
