#include "blockmgr/index/key_index.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.hpp"
#include "base/hash.hpp"

namespace cairn {
namespace {

// Eleven buckets per eight entries. Half of the entries may be ghosts (see BlockStore), so present
// keys fill at most 36% of the buckets, and a lookup mostly reads one.
std::size_t buckets_for(std::uint32_t max_entries) {
  return (std::size_t{max_entries} + 7) / 8 * 11;
}

}  // namespace

KeyIndex::KeyIndex(Options options)
    : options_(options), buckets_(buckets_for(options.max_entries)) {
  entries_.reserve(options.max_entries);
  details_.reserve(options.max_entries);
}

void KeyIndex::grow(std::uint32_t max_entries) {
  if (max_entries <= options_.max_entries) return;
  HugeVector<Bucket> buckets(buckets_for(max_entries));
  entries_.reserve(max_entries);
  details_.reserve(max_entries);
  buckets_.swap(buckets);
  options_.max_entries = max_entries;
  for (const Bucket& old : buckets) {
    if (old.entry != kNoEntry) put(old);
  }
}

void KeyIndex::put(Bucket bucket) {
  std::size_t at = home(bucket.tag);
  while (buckets_[at].entry != kNoEntry) at = after(at);
  buckets_[at] = bucket;
}

std::uint32_t KeyIndex::tag(KeyView key) const {
  return static_cast<std::uint32_t>(hash_bytes(key.bytes(), options_.hash_seed + key.kv_group));
}

// Inline, because each look-up calls it.
inline bool KeyIndex::holds(EntryNumber number, KeyView key) const {
  const Entry& entry = entries_[number];
  // One comparison for both: a KeyView has them side by side.
  const unsigned stored = entry.key_size | unsigned{entry.kv_group_bits} << 8;
  const unsigned asked = key.size | unsigned{key.kv_group} << 8;
  if (stored != asked) return false;
  const std::size_t head = std::min<std::size_t>(key.size, Entry::kHeadBytes);
  if (std::memcmp(entry.key_head.data(), key.data, head) != 0) return false;
  return key.size == head ||
         std::memcmp(details_[number].rare->key_tail.data(), key.data + head, key.size - head) == 0;
}

std::size_t KeyIndex::probe(std::size_t bucket, std::uint32_t tag) const {
  while (buckets_[bucket].entry != kNoEntry && buckets_[bucket].tag != tag) bucket = after(bucket);
  return bucket;
}

EntryNumber KeyIndex::find(KeyView key) const { return find(key, tag(key)); }

EntryNumber KeyIndex::find(KeyView key, std::uint32_t tag) const {
  return find_from(probe(home(tag), tag), tag, key);
}

EntryNumber KeyIndex::find_from(std::size_t bucket, std::uint32_t tag, KeyView key) const {
  while (buckets_[bucket].entry != kNoEntry && !holds(buckets_[bucket].entry, key)) {
    bucket = probe(after(bucket), tag);
  }
  return buckets_[bucket].entry;
}

KeyIndex::Scan::Scan(const KeyIndex& index, std::span<const KeyView> keys)
    : index_(index), keys_(keys) {
  hash(0);
  hash(1);
  probe(0);
}

std::span<const KeyView> KeyIndex::Scan::keys_of(std::size_t number) const {
  const std::size_t first = std::min(keys_.size(), number * kBatch);
  return keys_.subspan(first, std::min(kBatch, keys_.size() - first));
}

void KeyIndex::Scan::hash(std::size_t number) {
  Batch& to = batch(number);
  std::size_t i = 0;
  for (const KeyView key : keys_of(number)) {
    to.tags[i] = index_.tag(key);
    to.buckets[i] = index_.home(to.tags[i]);
    __builtin_prefetch(&index_.buckets_[to.buckets[i]]);
    ++i;
  }
}

void KeyIndex::Scan::probe(std::size_t number) {
  Batch& to = batch(number);
  for (std::size_t i = 0; i < keys_of(number).size(); ++i) {
    to.buckets[i] = index_.probe(to.buckets[i], to.tags[i]);
    const EntryNumber entry = index_.buckets_[to.buckets[i]].entry;
    if (entry != kNoEntry) __builtin_prefetch(&index_.entries_[entry]);
  }
}

std::span<const EntryNumber> KeyIndex::Scan::next() {
  const std::size_t number = next_++;
  hash(number + 2);
  probe(number + 1);
  const auto keys = keys_of(number);
  const Batch& from = batch(number);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    found_[i] = index_.find_from(from.buckets[i], from.tags[i], keys[i]);
  }
  return std::span(found_).first(keys.size());
}

EntryNumber KeyIndex::find_or_insert(KeyView key) {
  const std::uint32_t key_tag = tag(key);
  const EntryNumber known = find(key, key_tag);
  return known != kNoEntry ? known : insert(key, key_tag);
}

EntryNumber KeyIndex::insert(KeyView key, std::uint32_t tag) {
  CAIRN_ASSERT(size_ < options_.max_entries, "the index would fill up and a lookup never end");
  const std::size_t head = std::min<std::size_t>(key.size, Entry::kHeadBytes);
  std::unique_ptr<EntryDetails::Rare> rare;
  if (key.size > head) {
    rare = std::make_unique<EntryDetails::Rare>();
    std::memcpy(rare->key_tail.data(), key.data + head, key.size - head);
  }
  EntryNumber number = first_unused_;
  if (number != kNoEntry) {
    first_unused_ = std::exchange(entries_[number].parent, kNoEntry);
  } else {
    number = static_cast<EntryNumber>(entries_.size());
    entries_.emplace_back();
    details_.emplace_back();
  }
  Entry& entry = entries_[number];
  std::memcpy(entry.key_head.data(), key.data, head);
  entry.key_size = key.size & 0x7FU;
  entry.kv_group_bits = key.kv_group & 0xFU;
  if (rare) ++rare_;
  details_[number].rare = std::move(rare);

  put({tag, number});
  ++size_;
  return number;
}

void KeyIndex::erase(EntryNumber number) {
  const BlockKey owned = key(number);
  std::size_t hole = home(tag(owned.view()));
  while (buckets_[hole].entry != number) hole = after(hole);
  // Shifts back entries pushed past the hole, so no tombstone is needed.
  for (std::size_t next = after(hole); buckets_[next].entry != kNoEntry; next = after(next)) {
    const std::size_t n = buckets_.size();
    const std::size_t from_home = (next + n - home(buckets_[next].tag)) % n;
    const std::size_t from_hole = (next + n - hole) % n;
    if (from_home < from_hole) continue;
    buckets_[hole] = buckets_[next];
    hole = next;
  }
  buckets_[hole] = {};
  entries_[number] = Entry{};
  if (details_[number].rare) --rare_;
  details_[number] = {};
  entries_[number].parent = first_unused_;
  first_unused_ = number;
  --size_;
}

EntryDetails::Rare& KeyIndex::rare(EntryNumber entry) {
  auto& rare = details_[entry].rare;
  if (!rare) {
    rare = std::make_unique<EntryDetails::Rare>();
    ++rare_;
  }
  return *rare;
}

void KeyIndex::drop_rare(EntryNumber number) {
  auto& rare = details_[number].rare;
  const Entry& entry = entries_[number];
  const bool needed = entry.key_size > Entry::kHeadBytes || entry.has_ttl;
  if (!rare || needed || !rare->metadata.empty() || rare->epoch != 1) return;
  rare.reset();
  --rare_;
}

BlockKey KeyIndex::key(EntryNumber number) const {
  const Entry& entry = entries_[number];
  std::array<std::byte, kMaxKeyBytes> bytes;
  std::copy(entry.key_head.begin(), entry.key_head.end(), bytes.begin());
  if (entry.key_size > Entry::kHeadBytes) {
    const auto& tail = details_[number].rare->key_tail;
    std::copy(tail.begin(), tail.end(), bytes.begin() + Entry::kHeadBytes);
  }
  return BlockKey(std::span<const std::byte>(bytes.data(), entry.key_size), entry.kv_group());
}

std::uint64_t KeyIndex::memory_bytes() const {
  return buckets_.size() * sizeof(Bucket) +
         entries_.size() * (sizeof(Entry) + sizeof(EntryDetails)) +
         rare_ * sizeof(EntryDetails::Rare);
}

}  // namespace cairn
