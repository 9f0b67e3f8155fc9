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

// A key of the simulation. They are chains: each but the first of a chain follows the one before.
using KeyNumber = std::uint32_t;

// Knows what each key may hold, and from the events of the cache where it lies. Whatever
// contradicts it is a finding.
class Oracle {
 public:
  struct Shape {
    std::uint32_t chains = 6;
    std::uint32_t length = 8;
    std::uint64_t block_bytes = 64;
  };
  // `tell`: each event on stderr.
  Oracle(Finding& finding, Shape shape, bool tell);

  // --- what keys are
  std::uint32_t keys() const { return shape_.chains * shape_.length; }
  std::uint32_t length() const { return shape_.length; }
  const BlockKey& name(KeyNumber key) const { return names_[key]; }
  KeyNumber number(const BlockKey& name) const;  // REQUIRES: it is one
  std::optional<KeyNumber> parent(KeyNumber key) const;
  // Nobody writes it before its commit: it is zeros.
  static bool is_zeros(KeyNumber key) { return key % 11 == 10; }
  const testing::Bytes& bytes(KeyNumber key) const { return bytes_[key]; }
  // Some become a miss after a time.
  static std::optional<std::uint64_t> ttl_ms(KeyNumber key);

  // --- bytes
  void check(KeyNumber key, std::span<const iovec> found, const char* where);

  // --- where they are
  using Tiers = std::array<bool, kNumTiers>;
  // A life of the server, or of a cache, begins with nothing; the ring tells of what it finds.
  void begin_life(const EventRing& ring, std::uint64_t next_event, bool faulty);
  void end_life() { ring_ = nullptr; }
  // Takes what the ring has told since.
  void look();
  bool present(KeyNumber key) const { return highest(key).has_value(); }
  // Its time to live begins no earlier than its commit was asked for; the answer may come much
  // later, behind the disk.
  void committed(KeyNumber key, TimePoint asked_at);
  // A start that has lost what was noted last may bring an earlier life of a key back.
  void forget_ends() { ends_.assign(keys(), {}); }
  // Present, and its time cannot be over.
  bool must_be_found(KeyNumber key, TimePoint now) const;
  bool present_in(KeyNumber key, Tier tier) const { return where_[key][index_of(tier)]; }
  std::optional<Tier> highest(KeyNumber key) const;
  // Without those whose time may be over.
  std::set<KeyNumber> all_in(Tier tier) const;
  std::size_t count_in(Tier tier) const;
  // Faults may take copies away, and fail what else cannot fail.
  bool faulty() const { return faulty_; }

  // Tiers that a key has left since the last call while one that follows it was there.
  Tiers take_cut_chains() { return std::exchange(cut_chains_, Tiers{}); }
  // A match from the beginning of its chain finds it.
  bool is_reached(KeyNumber key) const;
  // Keys that no match reached, and that nothing followed, while one that a match reached left the
  // tier: since the last call.
  using PerTier = std::array<std::set<KeyNumber>, kNumTiers>;
  PerTier take_outlasted() { return std::exchange(outlasted_, PerTier{}); }

  // --- what lasts
  void checkpoint_begun();
  void checkpoint_ended(bool well);
  // What a power cut must leave.
  const std::set<KeyNumber>& durable() const { return durable_; }
  void nothing_is_durable() { durable_.clear(); }
  // A block that a start did not find need not be kept any more.
  void forget_absent() {
    std::erase_if(durable_, [this](KeyNumber key) { return !present_in(key, Tier::disk); });
  }
  // A power cut may leave a block that the index still names, and the header of the one that came
  // after it: only the index knows it.
  void doubt_all_but(const std::set<KeyNumber>& known);
  std::set<KeyNumber> beyond_doubt() const;  // on disk

  // --- handles: no two lives of a slot look the same
  void check_new(const BlockHandle& handle);
  // A process takes the slots of its memory along, and a power cut what the log told of those on
  // disk since the last checkpoint.
  void forget_handles(bool also_of_disk);

  Finding& finding() { return finding_; }
  std::string text(KeyNumber key) const;

 private:
  void take(const BlockEvent& event);

  Finding& finding_;
  const Shape shape_;
  const bool tell_;
  std::vector<BlockKey> names_;
  std::map<std::string, KeyNumber> numbers_;  // by name
  std::vector<testing::Bytes> bytes_;
  std::vector<Tiers> where_;
  std::vector<TimePoint> ends_;  // of those with a time to live, as far as is known
  Tiers cut_chains_{};
  PerTier outlasted_;
  const EventRing* ring_ = nullptr;
  std::uint64_t next_event_ = 0;
  bool faulty_ = false;
  std::set<KeyNumber> durable_;
  std::set<KeyNumber> doubtful_;
  std::optional<std::set<KeyNumber>> becoming_durable_;
  std::set<std::tuple<Tier, std::uint32_t, std::uint64_t>> handles_;
};

}  // namespace cairn::sim
