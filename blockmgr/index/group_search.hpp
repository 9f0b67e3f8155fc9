#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/result.hpp"
#include "blockmgr/index/config.hpp"

namespace cairn {

// Finds the longest prefix of some keys that all KV groups can serve, and the blocks that it needs.
// docs/design/kv-groups.md defines both.
class GroupSearch {
 public:
  struct Block {
    std::uint32_t key = 0;  // index of the block's last key, or of a tail's
    KvGroupNumber kv_group = 0;
  };
  // Called once for each block at most. An error ends the search.
  using IsPresent = std::function<Result<bool>(Block)>;

  // Borrows the configuration.
  struct Terms {
    const CacheConfig& config;
    std::size_t num_keys = 0;
    std::uint32_t have = 0;  // the caller has the full groups' blocks of the first `have` keys
  };
  explicit GroupSearch(const Terms& terms) : config_(terms.config), terms_(terms) {}

  Result<> run(const IsPresent& is_present);
  // Valid after run(); in keys.
  std::uint32_t matched() const { return matched_; }
  std::uint32_t full_matched() const { return full_matched_; }
  // The blocks that `matched` keys need, without those that the caller has, by group.
  std::vector<Block> needed() const;

  KvGroupNumber groups() const { return static_cast<KvGroupNumber>(config_.kv_group_count()); }
  std::uint64_t keys_per_block(KvGroupNumber group) const {
    return config_.shape_of(group).page_size / config_.tokens_per_key();
  }
  // The first block of a window group that a prefix of n keys needs.
  std::uint64_t first_run_of_window(KvGroupNumber group, std::uint64_t n) const;

 private:
  // How far a prefix reaches in one full group.
  struct FullReach {
    std::uint64_t keys = 0;       // of whole blocks, or that the caller has
    std::uint64_t first_run = 0;  // the first block that is needed
    std::vector<bool> tails;      // the tail of keys + 1 + i is present
  };

  Result<bool> present(KvGroupNumber group, std::uint64_t key);
  Result<> look_at_full_groups();
  bool full_groups_reach(std::uint64_t n) const;
  Result<std::uint64_t> next_candidate(std::uint64_t n);
  std::uint64_t runs_to(KvGroupNumber group, std::uint64_t n) const;

  const CacheConfig& config_;
  const Terms terms_;
  const IsPresent* is_present_ = nullptr;         // while it runs
  std::vector<std::vector<std::uint8_t>> known_;  // by group and key
  std::vector<FullReach> full_;                   // by group
  std::uint32_t matched_ = 0;
  std::uint32_t full_matched_ = 0;
};

}  // namespace cairn
