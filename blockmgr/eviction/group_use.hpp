#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <vector>

namespace cairn {

// A KV group, as far as it decides which blocks a request uses.
struct UsedGroup {
  enum class Kind : std::uint8_t { full, window, state } kind = Kind::full;
  std::uint32_t keys_per_block = 1;
  std::uint32_t window_tokens = 0;  // window only
  std::uint64_t block_bytes = 0;

  friend bool operator==(const UsedGroup&, const UsedGroup&) = default;
};

// The block of a group under a key of a prompt, by its index.
struct UsedBlock {
  std::uint32_t key = 0;
  std::uint32_t group = 0;
  friend auto operator<=>(const UsedBlock&, const UsedBlock&) = default;
};

// How an engine uses a cache of several KV groups: which blocks a prompt of some keys needs and
// stores. A prompt's *tail* at n keys is what a match of n keys needs besides the full groups: the
// windows before it and the states at it.
class GroupUse {
 public:
  GroupUse(std::uint32_t block_tokens, std::vector<UsedGroup> groups);

  const std::vector<UsedGroup>& groups() const { return groups_; }
  // The first full group that has a block under each key: the parents of windows and states.
  std::optional<std::uint32_t> parent_group() const { return parent_group_; }

  // Adds the full groups' blocks of the first `keys` keys.
  void add_full(std::uint32_t keys, std::vector<UsedBlock>& blocks) const;
  // Adds the tail at `n`. REQUIRES: storable(n).
  void add_tail(std::uint32_t n, std::vector<UsedBlock>& blocks) const;
  // The longest prefix of at most n keys whose tail is made of whole blocks.
  std::uint32_t storable(std::uint32_t n) const { return n / tail_keys_ * tail_keys_; }
  // The first block of a window that a match of n keys needs.
  std::uint32_t first_of_window(std::uint32_t group, std::uint32_t n) const;
  // The number of blocks of the group that hold n keys.
  std::uint32_t blocks_to(std::uint32_t group, std::uint32_t n) const {
    return (n + groups_[group].keys_per_block - 1) / groups_[group].keys_per_block;
  }

  struct Prompt {
    std::uint32_t keys = 0;
    std::uint32_t filled_keys = 0;   // those whose tokens are all there; the last may have room
    std::uint32_t matched = 0;       // keys, by all groups
    std::uint32_t full_matched = 0;  // by the full groups alone
  };
  // Where a request stores tails.
  enum class Tails : std::uint8_t {
    ends,      // at the end of its prompt
    partings,  // also where its match ended short of the full groups: prompts part there
  };
  // The blocks that a request stores, sorted: the full groups' beyond those that are there already,
  // and the tails but for the blocks that its match needed. Other blocks of a tail may be there
  // too.
  std::vector<UsedBlock> stored(const Prompt& prompt, Tails tails) const;

 private:
  std::uint64_t block_tokens_;
  std::vector<UsedGroup> groups_;
  std::optional<std::uint32_t> parent_group_;
  std::uint32_t tail_keys_ = 1;  // tails end at multiples of this
};

// Sorts by key, then group, and names each once.
void sort_blocks(std::vector<UsedBlock>& blocks);

}  // namespace cairn
