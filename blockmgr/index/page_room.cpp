#include "blockmgr/index/page_room.hpp"

#include <algorithm>

#include "base/assert.hpp"

namespace cairn {

PageRoom::PageRoom(const SlotContents& contents, std::uint32_t slots)
    : contents_(contents),
      slot_pages_(contents.slot_pages()),
      slots_(slots),
      counted_(slots),
      with_pages_(0) {
  with_pages_.grow(slots);
}

std::uint32_t PageRoom::freed_by(Part part) const {
  if (part.of == 0) return 0;
  const std::uint64_t used = written_ + reserved_;
  return units_beside(used - used * part.units / part.of) - free_units();
}

void PageRoom::take(SlotNumber slot, std::uint32_t units) {
  for (SlotNumber unit = slot; unit < slot + units; ++unit) {
    if (with_pages_.is_free(unit)) keep_no_more(unit);
  }
  counted_[slot] = static_cast<std::uint32_t>(units * slot_pages_);
  reserved_ += counted_[slot];
}

void PageRoom::settle(SlotNumber slot, std::uint32_t units) {
  reserved_ -= counted_[slot];
  counted_[slot] = static_cast<std::uint32_t>(contents_.pages(slot, units));
  written_ += counted_[slot];
}

void PageRoom::give_back(const Freed& freed) {
  std::uint64_t& from = freed.was_written ? written_ : reserved_;
  CAIRN_ASSERT(from >= counted_[freed.slot], "a slot's pages would be freed twice");
  from -= counted_[freed.slot];
  const SlotNumber end = std::min(freed.slot + freed.units, slots_);
  for (SlotNumber unit = freed.slot; unit < end; ++unit) keep(unit);
}

void PageRoom::hold(SlotNumber slot) {
  reserved_ -= counted_[slot];
  counted_[slot] = 0;
}

void PageRoom::keep(SlotNumber unit) {
  const std::uint64_t pages = contents_.pages(unit);
  if (pages == 0) return;
  kept_ += pages;
  with_pages_.give_back(unit);
}

void PageRoom::keep_no_more(SlotNumber unit) {
  kept_ -= contents_.pages(unit);
  with_pages_.take(unit);
}

std::uint64_t PageRoom::memory_bytes() const {
  return counted_.size() * sizeof(std::uint32_t) + with_pages_.memory_bytes();
}

}  // namespace cairn
