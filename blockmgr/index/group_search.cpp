#include "blockmgr/index/group_search.hpp"

#include <algorithm>

namespace cairn {
namespace {

constexpr std::uint8_t kUnknown = 0;
constexpr std::uint8_t kAbsent = 1;
constexpr std::uint8_t kPresent = 2;

}  // namespace

Result<> GroupSearch::run(const IsPresent& is_present) {
  is_present_ = &is_present;
  known_.assign(groups(), {});
  CAIRN_TRY(look_at_full_groups());
  std::uint64_t n = terms_.num_keys;
  while (n > 0 && !full_groups_reach(n)) --n;
  full_matched_ = static_cast<std::uint32_t>(n);
  while (n > 0) {
    auto shorter = next_candidate(n);
    if (!shorter) return std::move(shorter).error();
    if (*shorter == n) break;
    n = *shorter;
  }
  matched_ = static_cast<std::uint32_t>(n);
  is_present_ = nullptr;
  return {};
}

Result<bool> GroupSearch::present(KvGroupNumber group, std::uint64_t key) {
  std::vector<std::uint8_t>& known = known_[group];
  if (known.size() <= key) known.resize(terms_.num_keys, kUnknown);
  if (known[key] == kUnknown) {
    const auto is_there =
        (*is_present_)({.key = static_cast<std::uint32_t>(key), .kv_group = group});
    if (!is_there) return is_there;
    known[key] = *is_there ? kPresent : kAbsent;
  }
  return known[key] == kPresent;
}

Result<> GroupSearch::look_at_full_groups() {
  full_.assign(groups(), {});
  for (KvGroupNumber group = 0; group < groups(); ++group) {
    if (config_.kind_of(group) != KvGroupKind::full) continue;
    const std::uint64_t per_block = keys_per_block(group);
    const std::uint64_t have = std::min<std::uint64_t>(terms_.have, terms_.num_keys);
    FullReach& reach = full_[group];
    reach.first_run = have / per_block;
    std::uint64_t run = reach.first_run;
    for (; (run + 1) * per_block <= terms_.num_keys; ++run) {
      const auto is_there = present(group, (run + 1) * per_block - 1);
      if (!is_there) return is_there.error();
      if (!*is_there) break;
    }
    reach.keys = std::max(run * per_block, have);
    const std::uint64_t end = std::min<std::uint64_t>((run + 1) * per_block - 1, terms_.num_keys);
    for (std::uint64_t n = reach.keys + 1; n <= end; ++n) {
      const auto is_there = present(group, n - 1);
      if (!is_there) return is_there.error();
      reach.tails.push_back(*is_there);
    }
  }
  return {};
}

bool GroupSearch::full_groups_reach(std::uint64_t n) const {
  for (KvGroupNumber group = 0; group < groups(); ++group) {
    if (config_.kind_of(group) != KvGroupKind::full) continue;
    const FullReach& reach = full_[group];
    const bool by_tail =
        n > reach.keys && n - reach.keys <= reach.tails.size() && reach.tails[n - reach.keys - 1];
    if (n > reach.keys && !by_tail) return false;
  }
  return true;
}

// Returns n if all groups can serve it, else a smaller one; all between cannot be served.
Result<std::uint64_t> GroupSearch::next_candidate(std::uint64_t n) {
  if (!full_groups_reach(n)) return n - 1;
  // States first, because they need one look-up each.
  for (KvGroupNumber group = 0; group < groups(); ++group) {
    if (config_.kind_of(group) != KvGroupKind::state) continue;
    const auto is_there = present(group, n - 1);
    if (!is_there) return is_there.error();
    if (!*is_there) return n - 1;
  }
  for (KvGroupNumber group = 0; group < groups(); ++group) {
    if (config_.kind_of(group) != KvGroupKind::window) continue;
    const std::uint64_t per_block = keys_per_block(group);
    // From the last block on: a smaller n needs a missing one too, until it ends before it.
    for (std::uint64_t run = runs_to(group, n); run-- > first_run_of_window(group, n);) {
      const std::uint64_t last_key = (run + 1) * per_block - 1;
      auto is_there = last_key < terms_.num_keys ? present(group, last_key) : Result<bool>(false);
      if (!is_there) return std::move(is_there).error();
      if (!*is_there) return run * per_block;
    }
  }
  return n;
}

// The number of blocks that hold n keys.
std::uint64_t GroupSearch::runs_to(KvGroupNumber group, std::uint64_t n) const {
  const std::uint64_t per_block = keys_per_block(group);
  return (n + per_block - 1) / per_block;
}

std::uint64_t GroupSearch::first_run_of_window(KvGroupNumber group, std::uint64_t n) const {
  const std::uint64_t tokens = n * config_.tokens_per_key();
  const std::uint64_t window = config_.kv_groups[group].window_tokens - 1;
  if (window == 0) return runs_to(group, n);
  const std::uint64_t first_token = tokens - std::min(tokens, window);
  return first_token / config_.shape_of(group).page_size;
}

std::vector<GroupSearch::Block> GroupSearch::needed() const {
  std::vector<Block> blocks;
  const std::uint64_t n = matched_;
  if (n == 0) return blocks;
  const auto add = [&blocks](KvGroupNumber group, std::uint64_t key) {
    blocks.push_back({.key = static_cast<std::uint32_t>(key), .kv_group = group});
  };
  for (KvGroupNumber group = 0; group < groups(); ++group) {
    const std::uint64_t per_block = keys_per_block(group);
    switch (config_.kind_of(group)) {
      case KvGroupKind::full: {
        const FullReach& reach = full_[group];
        const bool by_tail = n > reach.keys;
        const std::uint64_t end = by_tail ? n / per_block : runs_to(group, n);
        for (std::uint64_t run = reach.first_run; run < end && n > terms_.have; ++run) {
          add(group, (run + 1) * per_block - 1);
        }
        if (by_tail) add(group, n - 1);
        break;
      }
      case KvGroupKind::window:
        for (std::uint64_t run = first_run_of_window(group, n); run < runs_to(group, n); ++run) {
          add(group, (run + 1) * per_block - 1);
        }
        break;
      case KvGroupKind::state:
        add(group, n - 1);
        break;
    }
  }
  return blocks;
}

}  // namespace cairn
