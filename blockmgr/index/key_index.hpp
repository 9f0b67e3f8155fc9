#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/huge_pages.hpp"
#include "blockmgr/index/quota_table.hpp"
#include "blockmgr/index/slot_ref.hpp"
#include "blockmgr/index/user_table.hpp"

namespace cairn {

using EntryNumber = std::uint32_t;
inline constexpr EntryNumber kNoEntry = ~EntryNumber{0};

// The data of a key that lookups read. It fills one cache line; a lookup of a key of up to 40 bytes
// reads no more.
struct alignas(64) Entry {
  static constexpr std::size_t kHeadBytes = 40;

  static constexpr std::uint32_t kMaxChildren = (1u << 26) - 1;

  std::array<std::byte, kHeadBytes> key_head;
  std::array<SlotNumber, kNumTiers> slots = {kNoSlot, kNoSlot, kNoSlot};
  EntryNumber parent = kNoEntry;    // if unused: the next unused entry
  std::uint32_t children : 26 = 0;  // present ones, at most kMaxChildren
  std::uint32_t kv_group_bits : 4 = 0;
  // It has one child, and a hint said that this child is used late or never.
  std::uint32_t ends_hinted : 1 = 0;
  // The key, or a key before it in the prefix, is not present: see BlockStore.
  std::uint32_t cut_off : 1 = 0;
  std::uint8_t key_size : 7 = 0;
  bool has_ttl : 1 = false;
  UserNumber user = 0;  // if present: who has used the key
  QuotaNumber quota = 0;

  KvGroupNumber kv_group() const {
    return static_cast<KvGroupNumber>(kv_group_bits);
  }  // of the key
  bool present() const { return slots[0] != kNoSlot || slots[1] != kNoSlot || slots[2] != kNoSlot; }
};
static_assert(kMaxKeyBytes < 1 << 7 && kMaxKvGroups == 1 << 4);
static_assert(sizeof(Entry) == 64, "a block's metadata is bounded: see BlockStore");

// The rest of a key's data, which lookups do not read.
struct EntryDetails {
  // Data that few keys have.
  struct Rare {
    std::array<std::byte, kMaxKeyBytes - Entry::kHeadBytes> key_tail{};
    TimePoint expires_at{};  // if has_ttl
    std::string metadata = {};
    std::uint32_t epoch = 1;
  };

  // By tier: children with a copy in it that is not leaving.
  std::array<std::uint32_t, kNumTiers> children_in_tier{};
  EntryNumber first_child = kNoEntry;  // the others are its siblings, unordered
  EntryNumber previous_sibling = kNoEntry;
  EntryNumber next_sibling = kNoEntry;
  std::uint64_t checksum = 0;  // of its bytes in canonical order; 0: not computed yet
  std::unique_ptr<Rare> rare = {};
};
static_assert(sizeof(EntryDetails) == 40, "a block's metadata is bounded: see BlockStore");

// Maps keys to entries, by open addressing. The number of (tag, entry) buckets depends on
// max_entries. Not thread-safe.
class KeyIndex {
 public:
  struct Options {
    std::uint32_t max_entries = 0;
    std::uint64_t hash_seed = 0;  // random, so that a client cannot choose keys that collide
  };
  explicit KeyIndex(Options options);

  EntryNumber find(KeyView key) const;
  void prefetch(KeyView key) const { __builtin_prefetch(&buckets_[home(tag(key))]); }
  static constexpr std::size_t kBatch = 16;
  class Scan;

  EntryNumber find_or_insert(KeyView key);  // REQUIRES: size() < max_entries
  void erase(EntryNumber entry);
  // Raises max_entries. Takes about 20 ms per million keys. If it throws std::bad_alloc, nothing
  // has changed.
  void grow(std::uint32_t max_entries);

  Entry& operator[](EntryNumber entry) { return entries_[entry]; }
  const Entry& operator[](EntryNumber entry) const { return entries_[entry]; }
  BlockKey key(EntryNumber entry) const;
  EntryDetails& details(EntryNumber entry) { return details_[entry]; }
  const EntryDetails& details(EntryNumber entry) const { return details_[entry]; }
  // Creates it if missing. If it throws std::bad_alloc, nothing has changed.
  EntryDetails::Rare& rare(EntryNumber entry);
  // Frees it if the entry no longer needs it.
  void drop_rare(EntryNumber entry);

  std::uint32_t size() const { return size_; }
  // includes unused ones
  EntryNumber end() const { return static_cast<EntryNumber>(entries_.size()); }
  std::uint64_t memory_bytes() const;

 private:
  struct Bucket {
    std::uint32_t tag = 0;  // part of the hash; determines the home bucket
    EntryNumber entry = kNoEntry;
  };
  std::uint32_t tag(KeyView key) const;
  std::size_t home(std::uint32_t tag) const {
    return static_cast<std::size_t>(std::uint64_t{tag} * buckets_.size() >> 32);
  }
  std::size_t after(std::size_t bucket) const {
    return bucket + 1 == buckets_.size() ? 0 : bucket + 1;
  }
  bool holds(EntryNumber entry, KeyView key) const;
  EntryNumber find(KeyView key, std::uint32_t tag) const;
  EntryNumber insert(KeyView key, std::uint32_t tag);  // REQUIRES: absent
  void put(Bucket bucket);
  // Returns the first bucket at or after `bucket` that is empty or has this tag.
  std::size_t probe(std::size_t bucket, std::uint32_t tag) const;
  EntryNumber find_from(std::size_t bucket, std::uint32_t tag, KeyView key) const;

  Options options_;
  HugeVector<Bucket> buckets_;
  // Reserved in advance and touched as it grows, so it moves only when max_entries grows.
  HugeVector<Entry> entries_;
  HugeVector<EntryDetails> details_;  // by entry; likewise
  std::uint32_t rare_ = 0;            // entries with a Rare
  EntryNumber first_unused_ = kNoEntry;
  std::uint32_t size_ = 0;
};

// Looks up a list of keys in order, batch by batch. A lookup is a chain of cache misses (bucket,
// entry, then the caller's slot). The misses of the next batches overlap with the use of the
// current one. REQUIRES: the index does not change while a scan is used.
class KeyIndex::Scan {
 public:
  // Borrows the index and the keys.
  Scan(const KeyIndex& index, std::span<const KeyView> keys);
  // Returns the entries of the next keys, at most kBatch; kNoEntry if a key has none. Empty at the
  // end. Valid until the next call.
  std::span<const EntryNumber> next();

 private:
  struct Batch {
    std::array<std::uint32_t, kBatch> tags;
    std::array<std::size_t, kBatch> buckets;
  };
  Batch& batch(std::size_t number) { return batches_[number % batches_.size()]; }
  std::span<const KeyView> keys_of(std::size_t number) const;
  void hash(std::size_t number);   // and prefetches the buckets
  void probe(std::size_t number);  // and prefetches the entries

  const KeyIndex& index_;
  const std::span<const KeyView> keys_;
  std::size_t next_ = 0;
  std::array<Batch, 3> batches_;
  std::array<EntryNumber, kBatch> found_;
};

}  // namespace cairn
