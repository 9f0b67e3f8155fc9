#pragma once

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "blockmgr/cache/block_pieces.hpp"
#include "blockmgr/core/cache_core.hpp"
#include "tests/simulation/clients.hpp"

namespace cairn::sim {

// The inside of Clients.

enum class Filled : std::uint8_t { no, busy, yes, committing, committed };

struct HeldBlock {
  BlockHandle handle;
  KeyNumber key = 0;  // the key that it holds or will hold
  Filled filled = Filled::committed;
};

struct HeldLease {
  LeaseId id;
  TimePoint end;
  std::vector<std::shared_ptr<HeldBlock>> blocks;
};

struct HeldReader {
  std::optional<BlockReader> reader;
  KeyNumber key = 0;
  std::vector<iovec> bytes;  // empty until the read ends
  bool gone = false;
};

inline std::string words(const Error& error) {
  return std::string(to_string(error.code)) + " (" + error.detail + ")";
}

inline bool is_one_of(const Error& error, std::initializer_list<ErrorCode> codes) {
  return std::ranges::find(codes, error.code) != codes.end();
}

struct Clients::State : std::enable_shared_from_this<Clients::State> {
  explicit State(Parts parts)
      : queue(parts.queue),
        oracle(parts.oracle),
        manager(parts.manager),
        cache(std::move(parts.cache)),
        remote_tier(std::move(parts.remote_tier)) {
    for (const Tier tier : kTiers) {
      if (cache->layout(tier) != nullptr) tiers.push_back(tier);
    }
  }

  // --- choosing
  Tier some_tier(Random& random) const { return tiers[random.below(tiers.size())]; }
  KeyNumber some_key(Random& random) const {
    return static_cast<KeyNumber>(random.below(oracle.keys()));
  }
  std::vector<KeyNumber> some_chain(Random& random) const {
    const auto length = oracle.length();
    const auto chain = static_cast<KeyNumber>(random.below(oracle.keys() / length));
    const std::uint64_t count = 1 + random.below(length);
    std::vector<KeyNumber> keys;
    for (KeyNumber i = 0; i < count; ++i) keys.push_back(chain * length + i);
    return keys;
  }
  std::vector<BlockKey> names(const std::vector<KeyNumber>& keys) const {
    std::vector<BlockKey> list;
    for (const KeyNumber key : keys) list.push_back(oracle.name(key));
    return list;
  }
  static std::uint32_t some_lease_ms(Random& random) {
    return random.once_in(4) ? 1 + static_cast<std::uint32_t>(random.below(20))
                             : 50 + static_cast<std::uint32_t>(random.below(3'000));
  }
  std::shared_ptr<HeldLease> some_lease(Random& random) const {
    if (leases.empty()) return nullptr;
    return leases[random.below(leases.size())];
  }

  void unpin_all() {
    std::vector<KeyNumber> all(oracle.keys());
    std::iota(all.begin(), all.end(), KeyNumber{0});
    oracle.all_may_go();
    if (auto unpinned = cache->unpin(names(all), {}); !unpinned) {
      expect("unpin", unpinned.error(), {});
    }
    oracle.look();
  }

  // --- checking
  bool lives(const HeldLease& lease) const { return queue.now() < lease.end; }
  // Returns false, and forgets the lease, if it has ended. An end at the wrong time is a finding.
  template <class Answer>
  bool alive(const std::shared_ptr<HeldLease>& lease, const Answer& answer, const char* verb) {
    if (answer) {
      if (!lives(*lease)) unexpected(verb, "a lease that had ended was accepted");
      return true;
    }
    if (!is_one_of(answer.error(), {ErrorCode::lease_expired, ErrorCode::unknown_lease})) {
      return true;
    }
    if (lives(*lease)) unexpected(verb, "a lease ended too early");
    forget(lease);
    return false;
  }
  // Marks the lease as ended, also for calls that have not ended.
  void forget(const std::shared_ptr<HeldLease>& lease) {
    lease->end = {};
    std::erase(leases, lease);
  }
  void unexpected(const char* verb, const std::string& what) {
    oracle.finding().report(std::string(verb) + ": " + what);
  }
  // Reports the error, unless it is one of `codes` or an injected fault explains it.
  void expect(const char* verb, const Error& error, std::initializer_list<ErrorCode> codes) {
    if (is_one_of(error, codes)) return;
    if (oracle.faulty() &&
        is_one_of(error, {ErrorCode::io_error, ErrorCode::device_error, ErrorCode::no_capacity,
                          ErrorCode::checksum_mismatch})) {
      return;
    }
    unexpected(verb, words(error));
  }

  // Checks that a lookup that found the first `found` keys was right.
  void check_prefix(const char* verb, const std::vector<KeyNumber>& keys, std::size_t found) {
    for (std::size_t i = 0; i < found; ++i) {
      if (!oracle.present(keys[i])) unexpected(verb, oracle.text(keys[i]) + " is not there");
    }
    if (found < keys.size() && oracle.must_be_found(keys[found], queue.now())) {
      unexpected(verb, oracle.text(keys[found]) + " was not found");
    }
  }
  void check_found(const char* verb, KeyNumber key, bool found) {
    if (found && !oracle.present(key)) unexpected(verb, oracle.text(key) + " is not there");
    if (!found && oracle.must_be_found(key, queue.now())) {
      unexpected(verb, oracle.text(key) + " was not found");
    }
  }

  void check_in_memory(const HeldBlock& block, const char* where) {
    if (block.filled != Filled::committed || block.handle.tier != Tier::pinned) return;
    const BlockLayout& layout = cache->core()->layout(Tier::pinned, block.handle.kv_group);
    const auto bytes = bytes_in_place(layout, block.handle.slot, std::nullopt);
    oracle.check(block.key, bytes, where);
  }

  // Ignores the result once the clients have ended.
  template <class T, class Work>
  Done<T> answer(Work work) {
    ++waiting;
    return [self = shared_from_this(), work = std::move(work)](Result<T> result) mutable {
      --self->waiting;
      if (self->over) return;
      self->oracle.look();
      work(*self, std::move(result));
    };
  }

  Queue& queue;
  Oracle& oracle;
  BlockManager& manager;
  const std::shared_ptr<Cache> cache;
  const std::shared_ptr<RemoteTier> remote_tier;
  std::vector<Tier> tiers;
  std::vector<std::shared_ptr<HeldLease>> leases;
  std::vector<std::shared_ptr<HeldReader>> readers;
  std::vector<TransferId> transfers;
  std::uint64_t waiting = 0;
  bool over = false;
};

}  // namespace cairn::sim
