#include "blockmgr/eviction/group_use.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

namespace cairn {

GroupUse::GroupUse(std::uint32_t block_tokens, std::vector<UsedGroup> groups)
    : block_tokens_(block_tokens), groups_(std::move(groups)) {
  for (std::uint32_t i = 0; i < groups_.size(); ++i) {
    const UsedGroup& group = groups_[i];
    const bool each_key = group.kind == UsedGroup::Kind::full && group.keys_per_block == 1;
    if (each_key && !parent_group_) parent_group_ = i;
    if (group.kind == UsedGroup::Kind::window) {
      tail_keys_ = std::lcm(tail_keys_, group.keys_per_block);
    }
  }
}

void GroupUse::add_full(std::uint32_t keys, std::vector<UsedBlock>& blocks) const {
  for (std::uint32_t group = 0; group < groups_.size(); ++group) {
    if (groups_[group].kind != UsedGroup::Kind::full) continue;
    const std::uint32_t per_block = groups_[group].keys_per_block;
    for (std::uint32_t end = per_block; end <= keys; end += per_block) {
      blocks.push_back({.key = end - 1, .group = group});
    }
    if (keys % per_block != 0) blocks.push_back({.key = keys - 1, .group = group});
  }
}

void GroupUse::add_tail(std::uint32_t n, std::vector<UsedBlock>& blocks) const {
  if (n == 0) return;
  for (std::uint32_t group = 0; group < groups_.size(); ++group) {
    if (groups_[group].kind == UsedGroup::Kind::state) {
      blocks.push_back({.key = n - 1, .group = group});
    }
    if (groups_[group].kind != UsedGroup::Kind::window) continue;
    const std::uint32_t end = blocks_to(group, n);
    for (std::uint32_t block = first_of_window(group, n); block < end; ++block) {
      blocks.push_back({.key = (block + 1) * groups_[group].keys_per_block - 1, .group = group});
    }
  }
}

std::uint32_t GroupUse::first_of_window(std::uint32_t group, std::uint32_t n) const {
  // The next token attends to itself and to this many before it.
  const std::uint64_t window = groups_[group].window_tokens - 1;
  if (window == 0) return blocks_to(group, n);
  const std::uint64_t tokens = n * block_tokens_;
  const std::uint64_t first_token = tokens - std::min(tokens, window);
  return static_cast<std::uint32_t>(first_token / (groups_[group].keys_per_block * block_tokens_));
}

std::vector<UsedBlock> GroupUse::stored(const Prompt& prompt, Tails tails) const {
  std::vector<UsedBlock> wanted;
  add_full(prompt.keys, wanted);
  const std::uint32_t end = std::min(prompt.filled_keys, prompt.keys);
  add_tail(storable(end), wanted);
  if (tails == Tails::partings && prompt.full_matched > prompt.matched) {
    add_tail(storable(std::min(prompt.full_matched, end)), wanted);
  }
  std::vector<UsedBlock> there;
  add_full(prompt.full_matched, there);
  add_tail(prompt.matched, there);
  sort_blocks(wanted);
  sort_blocks(there);
  std::vector<UsedBlock> stored;
  std::ranges::set_difference(wanted, there, std::back_inserter(stored));
  return stored;
}

void sort_blocks(std::vector<UsedBlock>& blocks) {
  std::ranges::sort(blocks);
  const auto twice = std::ranges::unique(blocks);
  blocks.erase(twice.begin(), twice.end());
}

}  // namespace cairn
