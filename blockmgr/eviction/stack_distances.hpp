#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "blockmgr/eviction/lru_stack.hpp"

namespace cairn {

// A block that a request asks for.
struct AskedBlock {
  std::uint64_t key_hash = 0;
  bool is_hub = false;  // it has at least kHubChildren children
};

// The hit rates of LRU caches of every size (LruStack). In a request the deepest block counts as
// the oldest, so LRU from the tail keeps, at each size, the most recently used blocks. One block in
// `one_in` is followed, chosen by its hash, and stands for the others (Waldspurger and others,
// 2015). All hubs are followed, because a few of them decide the hit rate. Not thread-safe.
class StackDistances {
 public:
  struct Options {
    std::uint32_t one_in = 1;            // for blocks that are not hubs; a power of two
    std::uint32_t max_blocks = 32'768;   // followed; the block used longest ago is dropped
    std::uint64_t half_life_blocks = 0;  // of the counts, in blocks asked for; 0: no fading
  };
  explicit StackDistances(const Options& options);

  // A block that is not a hub is followed if its hash has none of these bits.
  std::uint64_t left_out_bits() const { return options_.one_in - 1; }
  bool follows(const AskedBlock& block) const {
    return block.is_hub || (block.key_hash & left_out_bits()) == 0;
  }
  // A request: its followed blocks, the prefix's first block first, and the number of all its
  // blocks that are not hubs. Returns true if all counts were faded by kFade.
  struct Asked {
    std::span<const AskedBlock> followed;
    std::uint64_t others = 0;
  };
  bool request(const Asked& asked);
  // A block was stored that no request asked for.
  void stored(const AskedBlock& block);
  static constexpr double kFade = 0.957603280698574;  // 16 fades halve a count

  // Share of all blocks asked for, 0 to 1; 0 before the first request.
  double hit_rate(std::uint64_t capacity_blocks) const;
  // The part of hit_rate() that is hits of hubs.
  double hub_hit_rate(std::uint64_t capacity_blocks) const;
  // Share of the blocks asked for that are not hubs.
  double share_of_others() const;
  // Number of blocks asked for, after fading.
  double asked_blocks() const { return hubs_.asked + others_.asked; }
  std::uint64_t memory_bytes() const { return sizeof(*this) + stack_.memory_bytes(); }

 private:
  // 16 bins per octave: capacities that are 6% apart have different rates.
  static constexpr std::uint32_t kBinBits = 4;
  static constexpr std::size_t kBins = (64 - kBinBits) << kBinBits;
  static std::size_t bin_of(std::uint64_t distance);
  static std::uint64_t start_of(std::size_t bin);

  // Blocks asked for, and the distances of known ones, separately for hubs and others.
  struct Counts {
    double asked = 0;     // exactly
    double followed = 0;  // of those, the followed ones
    std::array<float, kBins> hits{};

    double hits_up_to(std::uint64_t distance) const;  // scaled to `asked`
  };

  void count(const AskedBlock& block);
  void put_on_top(const AskedBlock& block);
  void fade();

  Options options_;
  LruStack stack_;  // a block weighs the number of blocks it stands for
  Counts hubs_;
  Counts others_;
  std::uint64_t until_fade_ = 0;
};

}  // namespace cairn
