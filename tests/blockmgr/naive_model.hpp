#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "blockmgr/index/config.hpp"
#include "tests/blockmgr/rig.hpp"

namespace cairn::testing {

// Does what a cache should do, written to be read and not to be fast: it searches lists from end to
// end. It carries out transfers one by one, in the order they began, before an operation returns.
// Keys are numbers.
class NaiveModel {
 public:
  using Key = int;
  using LeaseName = int;
  explicit NaiveModel(const CacheConfig& config);

  struct Copy {
    Key key = -1;  // -1: an uncommitted slot
    Tier tier = Tier::device;
    int pins = 0;  // of leases
    int priority = 50;
    std::uint64_t used = 0;
    bool found = false;  // present: not uncommitted, not given up
    bool leaving = false;
  };
  using CopyId = int;
  struct Block {
    std::optional<Key> parent;
    std::optional<std::int64_t> expires_ms;
    Bytes bytes;
    std::string metadata;
    std::uint64_t born = 0;
    bool cut_off = false;  // a key before it is not here
  };
  struct Lease {
    std::int64_t expires_ms = 0;
    std::vector<CopyId> held;
  };

  void set_time(std::int64_t ms);  // leases end, keys expire
  bool present(Key key) const { return blocks.contains(key); }
  std::optional<CopyId> copy(Key key, Tier tier) const;
  std::optional<CopyId> highest(Key key) const;
  std::vector<Key> present_in(Tier tier) const;
  std::optional<Tier> lower(Tier tier) const;
  int free(Tier tier) const;
  std::uint64_t count(Tier tier, SlotState state) const;
  std::uint64_t leased(Tier tier) const;

  using Slots = std::optional<std::vector<CopyId>>;
  // Uncommitted slots; nullopt if the tier has too few.
  Slots allocate(Tier tier, int count, int priority);
  // False: a duplicate; the slot is free again.
  bool commit(LeaseName lease, CopyId slot, Key key, Block block);
  std::vector<CopyId> match(const std::vector<Key>& keys) const;
  void hold(LeaseName lease, CopyId copy);
  void touch(CopyId copy);
  void release(LeaseName lease, std::vector<CopyId> some);
  void end(LeaseName lease);
  void drop_key(Key key);
  void drop(CopyId copy);
  // nullopt if refused; otherwise true if everything arrived.
  std::optional<bool> transfer(const std::vector<Key>& keys, Tier to, bool move);
  // True if a transfer would read from two tiers. Either job may end first.
  bool reads_from_two_tiers(const std::vector<Key>& keys, Tier to) const;
  void evict(const std::vector<Key>& keys, Tier tier);
  // REQUIRES: leases hold nothing.
  void resize(Tier tier, int capacity);

  std::map<Key, Block> blocks;
  std::map<CopyId, Copy> copies;
  std::map<LeaseName, Lease> leases;
  std::uint64_t evicted_parent_before_child = 0;

 private:
  bool has_tier(Tier tier) const { return config_.tiers[index_of(tier)].has_value(); }
  int attainable(Tier tier) const;
  bool last_copy(const Copy& copy) const;
  bool cut_off(const Copy& copy) const { return blocks.at(copy.key).cut_off; }
  void settle_children(Key parent);
  bool has_children(Key key) const;
  bool may_go(const Copy& copy) const;
  bool wants_offload(const Copy& copy) const;
  std::optional<CopyId> victim(Tier tier) const;
  std::optional<CopyId> source(Key key, Tier to) const;
  bool overdue(Key key) const;
  bool is_leased(Key key) const;
  void drop_overdue();  // except leased keys

  struct Request {
    int count = 0;
    std::function<void(Slots)> granted;
    bool takes_fewer = false;
  };
  bool ask(Tier tier, Request request);  // false: refused, and not kept
  void serve(Tier tier);
  int leaving(Tier tier) const;
  int reclaim(Tier tier, int count);
  int cut_chains(Tier tier, int count);
  bool has_children_in_tier(const Copy& c) const;
  void offload(std::vector<CopyId> victims, bool forced);
  bool let_go(CopyId victim, bool forced);
  void run();                             // until nothing is under way
  CopyId place(Tier tier, int priority);  // uncommitted, with a pin
  void arrive(CopyId slot, CopyId source);
  void unpin(CopyId copy);

  CacheConfig config_;
  std::array<std::deque<Request>, kNumTiers> requests_;
  std::deque<std::function<void()>> jobs_;
  bool changed_ = false;  // waiting requests must be checked again
  std::int64_t now_ms_ = 0;
  std::uint64_t uses_ = 0;
  std::uint64_t births_ = 0;
  CopyId last_copy_id_ = 0;
};

}  // namespace cairn::testing
