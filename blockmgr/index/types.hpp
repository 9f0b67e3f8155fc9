#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/hash.hpp"
#include "base/strong_id.hpp"
#include "transport/record/block_record.hpp"

namespace cairn {

// Where blocks are stored, the highest tier (nearest to the engine) first.
enum class Tier : std::uint8_t { device, pinned, disk };
inline constexpr std::size_t kNumTiers = 3;
inline constexpr std::array<Tier, kNumTiers> kTiers = {Tier::device, Tier::pinned, Tier::disk};

constexpr std::size_t index_of(Tier tier) { return static_cast<std::size_t>(tier); }
std::string_view to_string(Tier tier);
std::optional<Tier> tier_from(std::string_view word);

// The life of a slot. The four are disjoint and sum to the tier's capacity.
enum class SlotState : std::uint8_t {
  free,
  allocated,  // being filled: a lease's uncommitted slot, or the target of a transfer
  committed,  // holds a key's bytes and is pinned by a lease, a read or a transfer
  evictable,  // holds a key's bytes and is not pinned
};
inline constexpr std::size_t kNumSlotStates = 4;
std::string_view to_string(SlotState state);
std::optional<SlotState> slot_state_from(std::string_view word);

// The number of a KV group: its index in CacheConfig::kv_groups, 0 in a cache of one group.
using KvGroupNumber = std::uint8_t;

// A slot in one of its lives: each reuse of the slot changes the generation.
struct BlockHandle {
  Tier tier = Tier::device;
  std::uint32_t slot = 0;
  std::uint64_t generation = 0;
  KvGroupNumber kv_group = 0;

  friend bool operator==(const BlockHandle&, const BlockHandle&) = default;
};

// A key of 1 to 64 opaque bytes, borrowed, and the KV group of the block that it names. A key names
// one block in each group.
struct KeyView {
  const std::byte* data = nullptr;
  std::uint8_t size = 0;
  KvGroupNumber kv_group = 0;

  std::span<const std::byte> bytes() const { return {data, size}; }
  // Raw bytes for containers and files of strings; not readable text.
  std::string_view as_text() const { return {reinterpret_cast<const char*>(data), size}; }
  // REQUIRES: at most kMaxKeyBytes bytes.
  static KeyView of_text(std::string_view text, KvGroupNumber kv_group = 0) {
    return {reinterpret_cast<const std::byte*>(text.data()), static_cast<std::uint8_t>(text.size()),
            kv_group};
  }
  KeyView in(KvGroupNumber group) const { return {data, size, group}; }
  friend bool operator==(const KeyView& a, const KeyView& b) {
    if (a.size != b.size || a.kv_group != b.kv_group) return false;
    if (a.size < kWord) return std::memcmp(a.data, b.data, a.size) == 0;
    // Compares by words; the last one may overlap the one before it. Usual keys have 8 to 32 bytes,
    // for which a call to memcmp takes longer than the comparison.
    for (std::size_t at = 0; at + kWord < a.size; at += kWord) {
      if (a.word(at) != b.word(at)) return false;
    }
    return a.word(a.size - kWord) == b.word(a.size - kWord);
  }

 private:
  static constexpr std::size_t kWord = sizeof(std::uint64_t);
  std::uint64_t word(std::size_t at) const {
    std::uint64_t value = 0;
    std::memcpy(&value, data + at, kWord);
    return value;
  }
};

// Stable and not secret. Use it only if colliding keys cost no more than a worse guess.
inline std::uint64_t plain_hash(KeyView key) { return hash_bytes(key.bytes(), key.kv_group); }

// An owned key and its KV group.
class BlockKey {
 public:
  BlockKey() = default;
  // REQUIRES: 1 to kMaxKeyBytes bytes.
  explicit BlockKey(std::span<const std::byte> bytes, KvGroupNumber kv_group = 0)
      : size_(static_cast<std::uint8_t>(bytes.size())), kv_group_(kv_group) {
    std::copy(bytes.begin(), bytes.end(), bytes_.begin());
  }
  explicit BlockKey(KeyView view) : BlockKey(view.bytes(), view.kv_group) {}
  KeyView view() const { return {bytes_.data(), size_, kv_group_}; }
  KvGroupNumber kv_group() const { return kv_group_; }
  operator KeyView() const { return view(); }
  friend bool operator==(const BlockKey& a, const BlockKey& b) { return a.view() == b.view(); }
  friend std::strong_ordering operator<=>(const BlockKey& a, const BlockKey& b) {
    if (a.kv_group_ != b.kv_group_) return a.kv_group_ <=> b.kv_group_;
    return a.view().as_text() <=> b.view().as_text();
  }

 private:
  std::array<std::byte, kMaxKeyBytes> bytes_{};
  std::uint8_t size_ = 0;
  KvGroupNumber kv_group_ = 0;
};

// Unguessable. Written as 32 hex digits. `cache` identifies the cache, so a lookup needs no lock
// over all caches.
struct LeaseId {
  std::uint32_t cache = 0;
  std::array<std::byte, 12> secret{};
  friend auto operator<=>(const LeaseId&, const LeaseId&) = default;
};

// The name of the token that took the lease, for people; null if no token was required.
using LeaseHolder = std::shared_ptr<const std::string>;

using TransferId = StrongId<struct TransferIdTag>;

}  // namespace cairn
