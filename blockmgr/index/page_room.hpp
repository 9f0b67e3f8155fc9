#pragma once

#include <cstdint>

#include "base/huge_pages.hpp"
#include "blockmgr/index/free_bitmap.hpp"
#include "blockmgr/index/slot_ref.hpp"
#include "transport/io/slot_contents.hpp"

namespace cairn {

// The room of a tier whose blocks take fewer pages of a sparse file than their slots have. The tier
// has kSlotsARoom slots for each slot of room, so that shorter blocks can be more. A slot that is
// being filled counts whole, until its block says how many pages it took.
//
// A free slot keeps its pages for the next block. Room that such pages hold counts as free, so they
// must go back to the file system before others take as many: see wants_punch(). Counted in units,
// which are slots: see SlotSizes. Not thread-safe.
class PageRoom {
 public:
  // No codec that keeps every bit makes the numbers of a model half as long.
  static constexpr std::uint32_t kSlotsARoom = 2;

  // Borrows the contents, which know each slot's pages.
  PageRoom(const SlotContents& contents, std::uint32_t slots);

  std::uint32_t units() const { return slots_ / kSlotsARoom; }
  std::uint32_t free_units() const { return units_beside(written_ + reserved_); }
  // Units by which written blocks exceed the room: it became smaller, or a snapshot's blocks came
  // back longer.
  std::uint32_t excess_units() const {
    const std::uint64_t all = all_pages();
    if (written_ <= all) return 0;
    return static_cast<std::uint32_t>((written_ - all + slot_pages_ - 1) / slot_pages_);
  }
  // Units that become free with a part of the units in use: an estimate, as if all blocks were
  // equally short.
  struct Part {
    std::uint32_t units = 0;
    std::uint32_t of = 0;
  };
  std::uint32_t freed_by(Part part) const;

  // If it throws std::bad_alloc, nothing has changed. Slots beyond the new number may be in use;
  // their free ones no longer count. `is_in_use` is asked for slots that come or go.
  template <class IsInUse>
  void set_slots(std::uint32_t slots, const IsInUse& is_in_use);

  void take(SlotNumber slot, std::uint32_t units);    // it was free, and will be filled
  void settle(SlotNumber slot, std::uint32_t units);  // its block is written
  // It is free now.
  struct Freed {
    SlotNumber slot = 0;
    std::uint32_t units = 0;
    bool was_written = false;
  };
  void give_back(const Freed& freed);
  // A slot in use counts nothing while its pages go back to the file system.
  void hold(SlotNumber slot);

  // Some free slot's pages are needed by others.
  bool wants_punch() const { return written_ + reserved_ + kept_ > all_pages() && has_kept(); }
  bool has_kept() const { return with_pages_.free_count() > 0; }
  // The first free unit with pages. REQUIRES: has_kept().
  SlotNumber first_kept() const { return with_pages_.lowest(); }
  void keep_no_more(SlotNumber unit);  // REQUIRES: it is one of these

  std::uint64_t memory_bytes() const;

 private:
  std::uint64_t all_pages() const { return std::uint64_t{units()} * slot_pages_; }
  // The whole units that are left beside these pages.
  std::uint32_t units_beside(std::uint64_t pages) const {
    const std::uint64_t all = all_pages();
    return pages >= all ? 0 : static_cast<std::uint32_t>((all - pages) / slot_pages_);
  }
  void keep(SlotNumber unit);

  const SlotContents& contents_;
  const std::uint64_t slot_pages_;
  std::uint32_t slots_ = 0;
  std::uint64_t written_ = 0;          // pages of slots with a block
  std::uint64_t reserved_ = 0;         // of slots that are being filled
  std::uint64_t kept_ = 0;             // of free ones
  HugeVector<std::uint32_t> counted_;  // of each slot in use
  FreeBitmap with_pages_;              // free units that have pages
};

template <class IsInUse>
void PageRoom::set_slots(std::uint32_t slots, const IsInUse& is_in_use) {
  if (slots > counted_.size()) {
    with_pages_.grow(slots);
    counted_.resize(slots);
  }
  for (SlotNumber slot = slots_; slot < slots; ++slot) {
    if (!is_in_use(slot)) keep(slot);
  }
  for (SlotNumber slot = slots; slot < slots_; ++slot) {
    if (with_pages_.is_free(slot)) keep_no_more(slot);
  }
  slots_ = slots;
}

}  // namespace cairn
