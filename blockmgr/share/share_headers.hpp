#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "blockmgr/share/group_types.hpp"
#include "transport/record/block_record.hpp"

namespace cairn {

// What ranks tell each other before they share blocks.

// Which call a rank is at. It goes as it lies in memory.
struct CallHeader {
  std::uint32_t version = kVersion;
  std::uint32_t kind = 0;
  std::uint32_t other = 0;  // of all_reduce: the reduction
  std::uint32_t reserved = 0;
  std::uint64_t key_count = 0;  // of all_reduce: of values
  // layers, outer, page, inner, width: layouts may differ, what a block is may not
  std::array<std::uint64_t, 5> shape{};

  static constexpr std::uint32_t kVersion = 2;  // of all that ranks tell each other; 1: Cairn 0.2
  static CallHeader of(const ShareRequest& request);
};
static_assert(sizeof(CallHeader) == 64);

// The ranks that take part, rising: the n-th header is the n-th rank's.
using Members = std::vector<std::uint32_t>;

// state_conflict, the same on every rank, where the calls do not go together.
Result<> check_calls(const Members& members, std::span<const CallHeader> headers);

// What a rank says of a key.
struct KeyHeader {
  enum class Holding : std::uint8_t {
    absent,  // and no place for it, or no wish
    held,    // it is here
    wanted,  // a slot waits for it
  };
  BlockKey key = {};
  std::optional<BlockKey> parent = {};  // nullopt: none, or unknown
  Holding holding = Holding::absent;
};
// The same as it is sent: a block's record, with Holding as its place, and zeros.
using KeyMessage = std::array<std::byte, max_record_bytes(sizeof(KeyHeader::Holding))>;
KeyMessage encode(const KeyHeader& header);
// All members' messages, members' batches end to end. checksum_mismatch, naming the rank, if one of
// them is not what a rank sends.
Result<std::vector<KeyHeader>> decode(const Members& members, std::span<const KeyMessage> messages);

// The headers of all members for a batch of keys, members' batches end to end, and what follows
// from them: the same on every rank.
class SharePlan {
 public:
  // `owner`: the only member that gives blocks (its place among the members); nothing: whoever
  // holds a key, the first of them.
  SharePlan(std::span<const KeyHeader> headers, std::size_t members,
            std::optional<std::size_t> owner);

  // state_conflict where the members do not name the same keys.
  Result<> check_keys(const Members& members) const;

  std::size_t key_count() const { return owners_.size(); }
  std::optional<std::size_t> owner(std::size_t key) const { return owners_[key]; }
  bool wants(std::size_t member, std::size_t key) const;
  bool moves(std::size_t key) const;  // somebody gives it and somebody wants it
  const KeyHeader& header(std::size_t member, std::size_t key) const {
    return headers_[member * owners_.size() + key];
  }

 private:
  const std::span<const KeyHeader> headers_;
  const std::size_t members_;
  std::vector<std::optional<std::size_t>> owners_;
};

// Goes behind the blocks of a message, one a block.
struct BlockChecksum {
  enum class Kind : std::uint64_t {
    none,       // its owner could not read it, and what came is nothing
    checked,    // with a checksum
    unchecked,  // straight from a device's memory: nobody has read it
  };
  std::uint64_t value = 0;
  Kind kind = Kind::none;
};

// XXH3 over the block's (layer, outer) pieces in canonical order, each seeded with the one before:
// the same whatever the layout. REQUIRES: each of `pieces` is of whole (layer, outer) pieces.
std::uint64_t block_checksum(std::span<const iovec> pieces, std::uint64_t piece_bytes);

}  // namespace cairn
