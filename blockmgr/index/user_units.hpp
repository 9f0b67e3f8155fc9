#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>

#include "base/assert.hpp"
#include "blockmgr/index/slot_ref.hpp"
#include "blockmgr/index/user_table.hpp"

namespace cairn {

// The slots of a tier that users asked to keep or to bring without a use, and their units: what
// shares of a tier bound. A slot counts once, for the first user who asked. Not thread-safe.
class UserUnits {
 public:
  enum Why : std::uint8_t {
    prefetched = 1,  // it waits for its request
    raised = 2,      // its priority is above that of ordinary blocks
    hinted = 4,      // a use is expected soon
  };
  struct Slot {
    SlotNumber slot = 0;
    std::uint32_t units = 0;
  };
  void add(Slot slot, UserNumber user, Why why) {
    const auto [at, is_new] = by_slot_.try_emplace(slot.slot, Asked{.user = user, .why = 0});
    at->second.why |= why;
    if (is_new) expect(user, slot.units);
  }
  void end(Slot slot, Why why) {
    const auto at = by_slot_.find(slot.slot);
    if (at == by_slot_.end()) return;
    at->second.why &= static_cast<std::uint8_t>(~why);
    if (at->second.why == 0) erase(at, slot.units);
  }
  void end(Slot slot) {
    if (const auto at = by_slot_.find(slot.slot); at != by_slot_.end()) erase(at, slot.units);
  }
  // A block moved within the tier. REQUIRES: nobody asked for slot `to`.
  void move(SlotNumber from, SlotNumber to) {
    auto node = by_slot_.extract(from);
    if (node.empty()) return;
    node.key() = to;
    const bool is_new = by_slot_.insert(std::move(node)).inserted;
    CAIRN_ASSERT(is_new, "the units of a slot would be lost");
  }
  // The user who asked for the slot, if also for this reason; else 0.
  UserNumber user_of(SlotNumber slot, Why why) const {
    const auto at = by_slot_.find(slot);
    return at != by_slot_.end() && (at->second.why & why) != 0 ? at->second.user : UserNumber{0};
  }
  bool has(SlotNumber slot) const { return by_slot_.contains(slot); }
  bool has_any() const { return !by_slot_.empty(); }

  // Units for which there is no slot yet.
  void expect(UserNumber user, std::uint64_t units) { of_user_[user] += units; }
  void unexpect(UserNumber user, std::uint64_t units) {
    std::uint64_t& of_user = of_user_[user];
    CAIRN_ASSERT(of_user >= units, "a user would have less than nothing");
    of_user -= units;
  }

  std::uint64_t of(UserNumber user) const {
    const auto known = of_user_.find(user);
    return known == of_user_.end() ? 0 : known->second;
  }

 private:
  struct Asked {
    UserNumber user = 0;
    std::uint8_t why = 0;
  };
  using BySlot = std::unordered_map<SlotNumber, Asked>;

  void erase(BySlot::iterator at, std::uint32_t units) {
    const UserNumber user = at->second.user;
    by_slot_.erase(at);
    unexpect(user, units);
  }

  BySlot by_slot_;
  std::unordered_map<UserNumber, std::uint64_t> of_user_;
};

}  // namespace cairn
