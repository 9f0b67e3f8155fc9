#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "blockmgr/block_manager.hpp"
#include "tests/blockmgr/rig.hpp"
#include "tests/simulation/queue.hpp"

namespace cairn::sim {

// A block of the simulation: a key in a KV group. Keys form chains: each is the child of the one
// before in its chain. Each group has the same keys, with other bytes.
using KeyNumber = std::uint32_t;

// Knows the bytes of each key, and from the cache's events the tiers it lies in. Any contradiction
// is a finding.
class Oracle {
 public:
  struct Shape {
    std::uint32_t chains = 6;
    std::uint32_t length = 8;
    std::vector<std::uint64_t> block_bytes = {64};  // by KV group
  };
  // `tell`: each event on stderr.
  Oracle(Finding& finding, Shape shape, bool tell);

  // --- keys
  std::uint32_t keys() const { return groups() * keys_of_group(); }
  std::uint32_t keys_of_group() const { return shape_.chains * shape_.length; }
  std::uint32_t groups() const { return static_cast<std::uint32_t>(shape_.block_bytes.size()); }
  KvGroupNumber group(KeyNumber key) const {
    return static_cast<KvGroupNumber>(key / keys_of_group());
  }
  // The block of the same key in another group.
  KeyNumber in_group(KeyNumber key, KvGroupNumber group) const {
    return key % keys_of_group() + group * keys_of_group();
  }
  std::uint32_t length() const { return shape_.length; }
  const BlockKey& name(KeyNumber key) const { return names_[key]; }
  KeyNumber number(const BlockKey& name) const;  // REQUIRES: it is one
  std::optional<KeyNumber> parent(KeyNumber key) const;
  // Clients commit such a key without writing it, so its bytes are zeros.
  static bool is_zeros(KeyNumber key) { return key % 11 == 10; }
  const testing::Bytes& bytes(KeyNumber key) const { return bytes_[key]; }
  // Some keys expire.
  static std::optional<std::uint64_t> ttl_ms(KeyNumber key);

  // --- bytes
  void check(KeyNumber key, std::span<const iovec> found, const char* where);

  // --- places
  using Tiers = std::array<bool, kNumTiers>;
  // Starts a run of the server or a new cache. It is empty; the ring reports the blocks found.
  void begin_life(const EventRing& ring, std::uint64_t next_event, bool faulty);
  void end_life() { ring_ = nullptr; }
  // Takes the ring's new events.
  void look();
  bool present(KeyNumber key) const { return highest(key).has_value(); }
  // A key's TTL begins no earlier than its commit call. The call may end much later, after disk
  // writes.
  void committed(KeyNumber key, TimePoint asked_at);
  // A start that lost the newest log records may restore an earlier block of a key.
  void forget_ends() { ends_.assign(keys(), {}); }
  // True if the key is present and cannot have expired.
  bool must_be_found(KeyNumber key, TimePoint now) const;
  bool present_in(KeyNumber key, Tier tier) const { return where_[key][index_of(tier)]; }
  std::optional<Tier> highest(KeyNumber key) const;
  // All keys in the tier, without those that can expire.
  std::set<KeyNumber> all_in(Tier tier) const;
  std::size_t count_in(Tier tier) const;
  // Faults may drop copies and make any call fail.
  bool faulty() const { return faulty_; }

  // Tiers that a key has left since the last call while its child was there.
  Tiers take_cut_chains() { return std::exchange(cut_chains_, Tiers{}); }
  // True if a match from the beginning of its chain finds it.
  bool is_reached(KeyNumber key) const;
  // Unreachable keys without children that stayed while a reachable key left the tier, since the
  // last call. Without those that a request held meanwhile.
  using PerTier = std::array<std::set<KeyNumber>, kNumTiers>;
  PerTier take_outlasted() {
    held_.clear();
    return std::exchange(outlasted_, PerTier{});
  }
  // A request pins the keys, and may let go of them before its step ends.
  void held_in_this_step(std::span<const KeyNumber> keys) {
    held_.insert(keys.begin(), keys.end());
  }

  // --- pins
  // A pin names the keys until then. `all`: it holds every one that is present.
  struct Pinned {
    std::span<const KeyNumber> keys;
    TimePoint until;
    bool all = false;
  };
  void pinned(const Pinned& pin);
  bool any_pinned() const { return !ever_pinned_.empty(); }
  // The keys may go from now on, by their clients' wish.
  void may_go(std::span<const KeyNumber> keys);
  void all_may_go() { promised_.clear(); }
  // A key that a pin holds is present. Not with faults, which may drop any copy.
  void check_pins(TimePoint now);

  // --- erased keys
  // A client erased the key. It stays away until a commit of it begins, unless one is under way.
  void erased(KeyNumber key);
  void commit_begun(KeyNumber key);
  void commit_ended(KeyNumber key) { --committing_[key]; }

  // --- the store that servers share
  // A client asked for these keys to be stored there. Each that is present gets there, unless it
  // leaves the cache before.
  void shared(std::span<const KeyNumber> keys);
  void reached_store(KeyNumber key) { in_store_.insert(key); }
  // Every key that must have reached the store is there. REQUIRES: the store has no faults.
  void check_shared();

  // --- durability
  void checkpoint_begun();
  void checkpoint_ended(bool well);
  // The keys that a power cut must leave.
  const std::set<KeyNumber>& durable() const { return durable_; }
  void nothing_is_durable() { durable_.clear(); }
  // A block that a start did not find need not be kept any more.
  void forget_absent() {
    std::erase_if(durable_, [this](KeyNumber key) { return !present_in(key, Tier::disk); });
  }
  // A power cut may leave a block that the index names beside the header of a later block in its
  // slot. Then only the index knows the first one.
  void doubt_all_but(const std::set<KeyNumber>& known);
  std::set<KeyNumber> beyond_doubt() const;  // on disk

  // --- handles: two uses of a slot never have the same handle
  void check_new(const BlockHandle& handle);
  // The server was killed. What its end still gives to waiting clients, no client would have got.
  void ignore_new_handles() { was_killed_ = true; }
  // The end of a process loses its slots in memory. A power cut also loses the log's records of
  // disk slots since the last checkpoint.
  void forget_handles(bool also_of_disk);

  Finding& finding() { return finding_; }
  std::string text(KeyNumber key) const;

 private:
  void take(const BlockEvent& event);
  // The blocks that need this one for a match to find them.
  std::vector<KeyNumber> children(KeyNumber key) const;
  // The block that this one needs.
  std::optional<KeyNumber> needed_by(KeyNumber key) const;

  Finding& finding_;
  const Shape shape_;
  const bool tell_;
  std::vector<BlockKey> names_;
  std::map<BlockKey, KeyNumber> numbers_;  // by name
  std::vector<testing::Bytes> bytes_;
  std::vector<Tiers> where_;
  std::vector<TimePoint> ends_;  // of keys with a TTL, if known
  Tiers cut_chains_{};
  PerTier outlasted_;
  std::set<KeyNumber> held_;
  std::set<KeyNumber> erased_;
  std::map<KeyNumber, int> committing_;  // commits under way
  std::set<KeyNumber> ever_pinned_;      // also in a life before: they may stay though unreachable
  std::map<KeyNumber, TimePoint> promised_;  // until when it is pinned for certain
  std::set<KeyNumber> in_store_;
  std::set<KeyNumber> to_be_stored_;
  // A key that left the cache while it was to be stored. The shared tier may take it as stored.
  std::set<KeyNumber> left_too_early_;
  const EventRing* ring_ = nullptr;
  std::uint64_t next_event_ = 0;
  bool faulty_ = false;
  std::set<KeyNumber> durable_;
  std::set<KeyNumber> doubtful_;
  std::optional<std::set<KeyNumber>> becoming_durable_;
  std::set<std::tuple<Tier, std::uint32_t, std::uint64_t>> handles_;
  bool was_killed_ = false;
};

}  // namespace cairn::sim
