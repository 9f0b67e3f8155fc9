#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.hpp"
#include "layouts/block_layout.hpp"
#include "memory/host/page_populator.hpp"
#include "transport/io/disk_io.hpp"

namespace cairn {

// The memory or the files that a tier's slots lie in, which may become more or less while they are
// used: a slot stays where it is as long as there is room for it. Memory that is added is a part of
// its own, whose blocks come behind the others'.
//
// layout() may be called by any thread at any time, and stays good: a job that was begun with it
// goes on with it. The rest is for one thread at a time.
class TierSpace {
 public:
  // A tier may grow so often, each time by a part. Engines register each part's memory with the
  // kernel, which allows 16,384 for a ring.
  static constexpr std::size_t kMaxParts = 64;

  // The pages of its memory are taken by `populator`, where there is one, which must outlive it.
  TierSpace(BlockLayout layout, std::vector<PreparedMemory> prepared, PagePopulator* populator);
  TierSpace(const TierSpace&) = delete;
  TierSpace& operator=(const TierSpace&) = delete;

  const BlockLayout& layout() const { return *current_.load(std::memory_order_acquire); }
  // Slots that there is room for.
  std::uint32_t room() const { return static_cast<std::uint32_t>(layout().config().num_blocks); }
  bool in_one_part() const { return parts_.size() == 1; }
  // Layouts that are kept for those who began with them.
  std::size_t kept() const { return kept_.size(); }
  bool may_have_more_parts() const { return parts_.size() < kMaxParts; }
  // Memory whose pages were taken before their first use; begins anew for a part that is kept or
  // given back in part. By any thread; nothing without a populator.
  std::optional<std::uint64_t> populated_bytes() const;

  // Room for as many slots more as the layout has.
  void add(BlockLayout more, std::vector<PreparedMemory> prepared);
  // The same files, whose length was changed.
  void set_files(BlockLayout layout);
  // Gives what only slots from this one on lie in back to the system, or takes it again. Memory
  // that must stay whole (a GPU's driver has registered it) goes in whole parts. no_capacity where
  // what is taken again is not to be had. REQUIRES: those slots are in no one's use.
  Result<> keep_below(std::uint32_t slots);

 private:
  struct Part {
    std::unique_ptr<BlockLayout> layout;
    std::vector<PreparedMemory> prepared;             // of its memory: ends before it
    std::unique_ptr<PagePopulator::Task> pages = {};  // likewise
  };
  void populate(Part& part, const std::vector<RegionView::Part>& besides);
  void publish(std::unique_ptr<const BlockLayout> layout);
  void join_parts();

  PagePopulator* const populator_;
  std::vector<Part> parts_;
  mutable Mutex
      reading_pages_;  // the parts change under it, as others read how far their pages are
  std::vector<std::unique_ptr<const BlockLayout>> kept_;
  std::atomic<const BlockLayout*> current_;
};

}  // namespace cairn
