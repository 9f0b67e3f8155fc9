#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "blockmgr/index/free_bitmap.hpp"
#include "blockmgr/index/slot_ref.hpp"
#include "blockmgr/index/slot_sizes.hpp"

namespace cairn {

using SlabNumber = std::uint32_t;

// Which slots of a tier are free, if its blocks have several sizes. A slab without blocks serves
// any size. Free slots are taken from the lowest slab of their size, so that high slabs become
// empty. Not thread-safe.
class SlabMap {
 public:
  using IsInUse = std::function<bool(SlotNumber)>;

  // REQUIRES: sizes.are_several(); `units` is a multiple of sizes.slab_units.
  SlabMap(SlotSizes sizes, std::uint32_t units);

  std::uint32_t units_of(KvGroupNumber group) const { return sizes_.units_of(group); }
  std::uint32_t slab_units() const { return sizes_.slab_units; }
  // The free units: of whole slabs, and of slots in slabs that have other blocks.
  std::uint32_t free_units() const { return free_units_; }
  // How many blocks of the group find a free slot.
  std::uint32_t free_for(KvGroupNumber group) const {
    const Size& size = by_size_[size_of_group_[group]];
    return size.free.free_count() + (empty_.free_count() - size.empty) * size.per_slab;
  }
  std::uint64_t slabs_moved() const { return slabs_moved_; }  // from one size to another
  std::uint64_t memory_bytes() const;

  SlotNumber take(KvGroupNumber group);  // REQUIRES: free_for(group) > 0
  // Takes this slot. Returns false, unchanged, if no block of the group can begin there, or its
  // slab has blocks of another size.
  bool take(SlotNumber slot, KvGroupNumber group);
  void give_back(SlotNumber slot, KvGroupNumber group);
  // The free slot that covers this unit, and a group whose blocks it holds; nullopt if there is
  // none.
  struct FreeSlot {
    SlotNumber slot = 0;
    KvGroupNumber kv_group = 0;
  };
  std::optional<FreeSlot> free_slot_with(SlotNumber unit) const;

  // Changes the number of units. `is_in_use` is asked for slots of slabs that come back. REQUIRES:
  // a multiple of the slab's.
  void set_limit(std::uint32_t units, const IsInUse& is_in_use);

  // The slab that is emptied with the fewest copies, so that blocks of `group` find room: its
  // blocks have a size of which a slab's worth of slots is free. `may_move` is asked for its slots
  // in use. Looks at some slabs only. nullopt: there is none.
  std::optional<SlabNumber> to_vacate(KvGroupNumber group, const IsInUse& is_in_use,
                                      const IsInUse& may_move);
  // The slots of a slab's blocks that are in use.
  std::vector<SlotNumber> used_slots(SlabNumber slab, const IsInUse& is_in_use) const;
  // A closed slab's free slots are not handed out. One that becomes empty opens by itself.
  void close(SlabNumber slab) { hide(slab); }
  void reopen(SlabNumber slab, const IsInUse& is_in_use);  // no effect on an open one

 private:
  using SizeNumber = std::uint8_t;
  static constexpr SizeNumber kNoSize = 255;
  struct Slab {
    SizeNumber size = kNoSize;  // of its blocks; of an empty one: of the last
    bool closed = false;        // or beyond the limit
    std::uint32_t used = 0;     // slots
  };
  struct Size {
    std::uint32_t units = 0;
    std::uint32_t per_slab = 0;
    FreeBitmap free;          // by slot
    std::uint32_t empty = 0;  // open slabs of this size without blocks
    SlabNumber looked = 0;    // where the next search for a slab to vacate starts
  };

  SlabNumber slab_of(SlotNumber slot) const { return slot / sizes_.slab_units; }
  SlotNumber first_of(SlabNumber slab) const { return slab * sizes_.slab_units; }
  void give_size(SlabNumber slab, SizeNumber size);
  void take_free_slots(SlabNumber slab);  // out of its size's bitmap
  void note_taken(SlotNumber slot);
  void add_empty(SlabNumber slab);
  void remove_empty(SlabNumber slab);
  std::uint32_t free_units_of(const Slab& slab) const {
    return (by_size_[slab.size].per_slab - slab.used) * by_size_[slab.size].units;
  }
  void hide(SlabNumber slab);
  void show(SlabNumber slab, const IsInUse& is_in_use);

  const SlotSizes sizes_;
  std::vector<SizeNumber> size_of_group_;
  std::vector<Size> by_size_;
  std::vector<Slab> slabs_;
  FreeBitmap empty_;  // open slabs without blocks
  SlabNumber limit_ = 0;
  std::uint32_t free_units_ = 0;
  std::uint64_t slabs_moved_ = 0;
};

}  // namespace cairn
