#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.hpp"
#include "blockmgr/index/types.hpp"
#include "layouts/block_layout.hpp"
#include "memory/host/page_populator.hpp"
#include "transport/io/disk_io.hpp"

namespace cairn {

// The memory or files that hold a tier's slots. They may grow and shrink in use: a slot stays where
// it is while there is room for it. Added memory is a separate part, whose blocks come after the
// others'. If blocks have several sizes, a larger one covers the slots after its own: see
// SlotSizes.
//
// Any thread may call slots() and layout() at any time. The result stays valid: a job that began
// with it finishes with it. For the rest, one thread at a time.
class TierSpace {
 public:
  // A tier has at most this many parts; each growth adds one. Engines register each part's memory
  // with the kernel, which allows 16,384 per ring.
  static constexpr std::size_t kMaxParts = 64;

  // `shapes`: of the blocks of each KV group; empty if there is one group. If not null, `populator`
  // allocates the pages of the memory; it must outlive this object.
  TierSpace(BlockLayout layout, std::vector<LayoutConfig> shapes,
            std::vector<PreparedMemory> prepared, PagePopulator* populator);
  TierSpace(const TierSpace&) = delete;
  TierSpace& operator=(const TierSpace&) = delete;

  // The slots, each of the size of a unit.
  const BlockLayout& slots() const { return *slots_.load(std::memory_order_acquire); }
  // The slots, as blocks of that group.
  const BlockLayout& layout(KvGroupNumber kv_group = 0) const {
    return current_.load(std::memory_order_acquire)[kv_group];
  }
  // The number of slots that fit.
  std::uint32_t room() const { return static_cast<std::uint32_t>(slots().config().num_blocks); }
  bool in_one_part() const { return parts_.size() == 1; }
  // The part that was there from the start. Thread-safe.
  const BlockLayout& first_part() const { return *first_; }
  // Whether all parts follow each other in the file of the first, so that another process maps them
  // in one piece. Thread-safe.
  bool in_one_file() const { return in_one_file_.load(std::memory_order_acquire); }
  // Where memory for more slots has to begin for that. nullopt: it would have to begin within a
  // page, or the layout has several regions, or the memory no file.
  std::optional<SharedFilePlace> next_place() const;
  // Layouts kept for jobs that began with them.
  std::size_t kept() const { return std::max(kept_.size(), kept_by_group_.size()); }
  bool may_have_more_parts() const { return parts_.size() < kMaxParts; }
  // Memory whose pages were allocated before their first use; nullopt without a populator.
  // keep_below() restarts the count of the last part. Thread-safe.
  std::optional<std::uint64_t> populated_bytes() const;

  // Adds room for as many slots as `more` has. `follows`: it begins at next_place().
  void add(BlockLayout more, std::vector<PreparedMemory> prepared, bool follows);
  // The same files with a new length.
  void set_files(BlockLayout layout);
  // Returns to the system what only slots from this one on use, or allocates it again. Memory that
  // must stay whole, because a GPU's driver has registered it, is returned in whole parts. Error:
  // no_capacity if memory to allocate again is not available. REQUIRES: those slots are not in use.
  Result<> keep_below(std::uint32_t slots);

 private:
  struct Part {
    std::unique_ptr<BlockLayout> layout;
    std::vector<PreparedMemory> prepared;             // of its memory: ends before it
    std::unique_ptr<PagePopulator::Task> pages = {};  // likewise
  };
  static std::vector<Part> one_part(BlockLayout layout, std::vector<PreparedMemory> prepared);
  void populate(Part& part, const std::vector<RegionView::Part>& besides);
  void publish(std::unique_ptr<const BlockLayout> slots);
  void publish(const BlockLayout& slots);
  void join_parts();

  const std::vector<LayoutConfig> shapes_;
  PagePopulator* const populator_;
  std::vector<Part> parts_;
  const BlockLayout* const first_;
  std::atomic<bool> in_one_file_ = true;
  mutable Mutex reading_pages_;  // for changes of parts_, which populated_bytes() reads
  std::vector<std::unique_ptr<const BlockLayout>> kept_;
  std::vector<std::unique_ptr<const std::vector<BlockLayout>>> kept_by_group_;
  std::atomic<const BlockLayout*> slots_;
  std::atomic<const BlockLayout*> current_;  // the first of one per group
};

}  // namespace cairn
