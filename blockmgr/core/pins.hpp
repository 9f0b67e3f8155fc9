#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/random.hpp"
#include "blockmgr/disk/pins_file.hpp"
#include "blockmgr/index/block_store.hpp"
#include "blockmgr/index/types.hpp"

namespace cairn {

class CacheLock;

// Clients' wishes that blocks stay until a time. A lease pins slots whose bytes somebody uses; a
// pin keeps keys from eviction, for longer, and belongs to no connection.
//
// Each pinned key has one protected copy: the highest at the latest pin. Eviction does not take
// that copy. A transfer that moves the block takes the protection along, if the other tier's bounds
// allow it; otherwise the protected copy stays. The pin loses a block that a client deletes. A copy
// that a transfer adds in a higher tier is not protected.
//
// Bounds: PinShares by tier and token, and the constants below. A block counts once in its tier,
// and once for each token, however many pins name it.
//
// Part of a cache's state: each call takes the CacheLock. A pinned block takes some 130 bytes, and
// 8 more for each pin that names it.
class Pins {
 public:
  // As many as leases.
  static constexpr std::size_t kMaxPins = 65'536;
  // One token cannot take all of them.
  static constexpr std::size_t kMaxPinsOfToken = 4'096;
  // Pins that name one block. Each pin, unpin and hit looks at all of them.
  static constexpr std::size_t kMaxPinsOfBlock = 64;
  // Blocks that all pins name together: 32 MiB.
  static constexpr std::size_t kMaxNamedBlocks = 1u << 22;

  struct Terms {
    LeaseHolder holder = {};
    std::string session = {};  // for people, and for unpin; empty: none
    std::uint32_t ttl_ms = 0;
    bool refresh_on_hit = false;  // a match that finds one of its blocks restarts the time
  };
  using Number = std::uint64_t;
  // nullopt if there are too many. It holds nothing, and is not listed, until start().
  std::optional<Number> open(Terms terms);
  enum class Added : std::uint8_t {
    added,
    named,     // it had the block already
    budget,    // the tier's or the token's share is used up
    too_many,  // see the limits above
  };
  Added add(CacheLock& locked, Number pin, EntryNumber entry);
  // Its time begins. Returns nullopt, and the pin is gone, if it has no block.
  std::optional<PinId> start(CacheLock& locked, Number pin);
  // Ends pins that are overdue. Releases the lock between steps.
  void end_overdue(CacheLock& locked);
  // Ends a pin. Releases the lock between steps.
  void end(CacheLock& locked, Number pin);
  void end_all(CacheLock& locked);  // releases the lock between steps
  // Takes a block from the pins of the token. Returns false if none of them has it. A pin without
  // blocks ends.
  bool take_off(CacheLock& locked, const LeaseHolder& holder, EntryNumber entry);
  std::optional<Number> find(const PinId& id) const;
  // The pins that this token made for the session.
  std::vector<Number> of_session(const LeaseHolder& holder, std::string_view session) const;
  // A match found the block.
  void hit(CacheLock& locked, EntryNumber entry) {
    if (refreshing_ > 0) refresh(locked, entry);
  }
  // Protects other copies of the keys whose protected copy was dropped. Cheap if there are none.
  void settle(CacheLock& locked) {
    if (locked_store(locked).any_unprotected()) settle_all(locked);
  }
  // Whether the pins of this copy, which a move would drop, find room for another copy of its key.
  // True if no pin protects it.
  bool may_move(CacheLock& locked, SlotRef from);
  // Another token's pin holds the block.
  bool is_of_others(const LeaseHolder& holder, EntryNumber entry) const;

  struct Info {
    PinId id;
    LeaseHolder holder = {};
    std::string session = {};
    std::uint64_t blocks = 0;
    std::uint64_t bytes = 0;
    TimePoint expires_at{};
  };
  // The first pin at or after `from` in the order of numbers; nullopt if there are no more.
  std::optional<Number> next(Number from) const;
  // nullopt if it is being filled or ended.
  std::optional<Info> describe(Number pin) const;
  std::size_t size() const { return by_id_.size(); }

  // --- for the next start
  // Without its keys. nullopt if it has ended, or is being filled.
  std::optional<PinRecord> record_of(CacheLock& locked, Number pin) const;
  // Appends the keys of the next `count` blocks of the list, from `first` on, that it has. Returns
  // false after the last, or if the pin has ended.
  struct Range {
    std::size_t first = 0;
    std::size_t count = 0;
  };
  bool add_keys(CacheLock& locked, Number pin, Range blocks,
                std::vector<PinRecord::Key>& out) const;
  // Adds the pin of an earlier run, if some of its blocks are here. REQUIRES: nobody uses the
  // cache yet.
  void restore(CacheLock& locked, const PinRecord& record);
  // Raised when pins come or go.
  std::uint64_t changes() const { return changes_; }
  // True if a pin's end was moved since the last call.
  bool take_refreshed() { return std::exchange(refreshed_, false); }

 private:
  struct Pin {
    PinId id{};
    Terms terms = {};
    TimePoint expires_at{};                      // while it is open for changes: see is_listed
    std::vector<BlockStore::Trail> blocks = {};  // some may be gone
    std::uint64_t live = 0;                      // those that are not
    std::uint64_t bytes = 0;                     // of those
    bool is_listed = false;
  };
  // A pinned key.
  struct Pinned {
    Tier tier = Tier::device;  // of its protected copy
    std::uint32_t units = 0;
    std::uint64_t bytes = 0;
    std::vector<Number> pins = {};
  };
  // What a token's pins hold.
  struct OfToken {
    std::array<std::uint64_t, kNumTiers> units{};
    std::size_t pins = 0;
  };
  using Tokens = std::unordered_map<std::string, OfToken>;

  static BlockStore& locked_store(CacheLock& locked);
  static std::string name_of(const LeaseHolder& holder);
  void refresh(CacheLock& locked, EntryNumber entry);
  void settle_all(CacheLock& locked);
  bool has(Number pin, EntryNumber entry) const;
  bool has_of(const Pinned& pinned, const LeaseHolder& holder) const;
  // Whether the bounds of the tier or of a token allow these units in addition.
  struct Place {
    Tier tier = Tier::device;
    std::uint32_t units = 0;
  };
  bool fits_tier(CacheLock& locked, const Place& place) const;
  bool fits_token(CacheLock& locked, const Place& place, const LeaseHolder& holder) const;
  // The tokens whose pins hold the block, each once.
  std::vector<LeaseHolder> holders_of(const Pinned& pinned) const;
  void move_up(CacheLock& locked, EntryNumber entry, Pinned& pinned);
  void remove(CacheLock& locked, EntryNumber entry, Number pin);
  void forget(EntryNumber entry);
  // The bounds of the tier and of the pins' tokens, which do not count the block now, allow it.
  bool fits(CacheLock& locked, const Place& place, std::span<const LeaseHolder> holders) const;
  bool end_step(CacheLock& locked, Number pin, std::size_t blocks);
  void close(Number pin);

  RandomBytes random_;
  Number last_ = 0;
  std::map<Number, Pin> pins_;
  std::map<PinId, Number> by_id_;  // listed ones
  std::set<std::pair<TimePoint, Number>> by_end_;
  std::unordered_map<EntryNumber, Pinned> entries_;
  Tokens tokens_;
  std::size_t named_ = 0;       // blocks of all pins
  std::size_t refreshing_ = 0;  // pins with refresh_on_hit
  std::uint64_t changes_ = 0;
  bool refreshed_ = false;
};

}  // namespace cairn
