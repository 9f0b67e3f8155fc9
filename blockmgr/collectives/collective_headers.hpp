#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "blockmgr/collectives/group_types.hpp"
#include "transport/record/block_record.hpp"

namespace cairn {

// Messages between ranks before they share blocks.

// The call of a rank. Sent as it lies in memory.
struct CallHeader {
  std::uint32_t version = kVersion;
  std::uint32_t kind = 0;
  std::uint32_t other = 0;      // all_reduce: the reduction
  std::uint32_t data_type = 0;  // all_reduce: of its values
  std::uint64_t key_count = 0;  // all_reduce: number of values
  // layers, outer, page, inner, width: layouts may differ, the shape must not
  std::array<std::uint64_t, 5> shape{};

  static constexpr std::uint32_t kVersion = 2;  // of all messages between ranks; 1: Cairn 0.2
  static CallHeader of(const CollectiveRequest& request);
};
static_assert(sizeof(CallHeader) == 64);

// The ranks that take part, ascending: the n-th header belongs to the n-th member.
using Members = std::vector<std::uint32_t>;

// state_conflict, the same on every rank, if the calls do not match.
Result<> check_calls(const Members& members, std::span<const CallHeader> headers);

// A rank's state of a key.
struct KeyHeader {
  enum class Holding : std::uint8_t {
    absent,  // no slot for it, or not wanted
    held,    // stored on this rank
    wanted,  // a slot waits for it
  };
  BlockKey key = {};
  std::optional<BlockKey> parent = {};  // nullopt: none, or unknown
  Holding holding = Holding::absent;
};
// A KeyHeader as it is sent: a block record with Holding as its place, padded with zeros.
using KeyMessage = std::array<std::byte, max_record_bytes(sizeof(KeyHeader::Holding))>;
KeyMessage encode(const KeyHeader& header);
// Decodes all members' messages, one member's batch after the other. Error: checksum_mismatch,
// naming the rank, if a message is invalid.
Result<std::vector<KeyHeader>> decode(const Members& members, std::span<const KeyMessage> messages);

// The headers of all members for a batch of keys, one member's batch after the other, and the plan
// that follows from them. It is the same on every rank.
class CollectivePlan {
 public:
  // `owner`: the only member that gives blocks, as an index; nullopt: the first member that holds a
  // key gives it.
  CollectivePlan(std::span<const KeyHeader> headers, std::size_t members,
                 std::optional<std::size_t> owner);

  // state_conflict if the members do not name the same keys.
  Result<> check_keys(const Members& members) const;

  std::size_t key_count() const { return owners_.size(); }
  std::optional<std::size_t> owner(std::size_t key) const { return owners_[key]; }
  bool wants(std::size_t member, std::size_t key) const;
  bool moves(std::size_t key) const;  // one member gives it and another wants it
  const KeyHeader& header(std::size_t member, std::size_t key) const {
    return headers_[member * owners_.size() + key];
  }

 private:
  const std::span<const KeyHeader> headers_;
  const std::size_t members_;
  std::vector<std::optional<std::size_t>> owners_;
};

// One per block, after the blocks of a message.
struct BlockChecksum {
  enum class Kind : std::uint64_t {
    none,       // the owner could not read the block; the bytes are invalid
    checked,    // with a checksum
    unchecked,  // straight from device memory; no CPU has read the block
  };
  std::uint64_t value = 0;
  Kind kind = Kind::none;
};

// XXH3 over the block's (layer, outer) pieces in canonical order, each seeded with the previous
// hash. It does not depend on the layout. REQUIRES: each of `pieces` consists of whole (layer,
// outer) pieces.
std::uint64_t block_checksum(std::span<const iovec> pieces, std::uint64_t piece_bytes);

}  // namespace cairn
