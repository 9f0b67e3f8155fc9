#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "blockmgr/eviction/lru_stack.hpp"

namespace cairn {

// A block that a request asks for.
struct AskedBlock {
  std::uint64_t key_hash = 0;
  bool is_hub = false;  // kHubChildren blocks follow it, or more
};

// What share of the blocks asked for LRU caches of every size would have had (LruStack). Of one
// request the deepest block counts as the oldest, so LRU from the tail keeps, at each size, the
// blocks that were used last. One block in so many is followed, chosen by its hash, and counts for
// all of them (Waldspurger and others, 2015); hubs are all followed, as a few of them decide how
// much is hit at all. Not thread-safe.
class StackDistances {
 public:
  struct Options {
    std::uint32_t one_in = 1;            // blocks that are no hubs; a power of two
    std::uint32_t max_blocks = 32'768;   // that are followed; the one used longest ago is given up
    std::uint64_t half_life_blocks = 0;  // asked for; 0: nothing is forgotten
  };
  explicit StackDistances(const Options& options);

  // Of blocks that are no hubs those are followed whose hash has none of these bits.
  std::uint64_t left_out_bits() const { return options_.one_in - 1; }
  bool follows(const AskedBlock& block) const {
    return block.is_hub || (block.key_hash & left_out_bits()) == 0;
  }
  // A request, its blocks that are followed, the prefix's first one first. Those that are no hubs
  // were so many together with those that are not followed. True where what was seen so far counts
  // less from now on, by kFade.
  struct Asked {
    std::span<const AskedBlock> followed;
    std::uint64_t others = 0;
  };
  bool request(const Asked& asked);
  // The block was stored, and nobody had asked for it.
  void stored(const AskedBlock& block);
  static constexpr double kFade = 0.957603280698574;  // 16 times are a half

  // Of all blocks asked for, 0 to 1; 0 before anything was asked for.
  double hit_rate(std::uint64_t capacity_blocks) const;
  // The part of that which are hits of hubs.
  double hub_hit_rate(std::uint64_t capacity_blocks) const;
  // Of the blocks asked for, those that are no hubs.
  double share_of_others() const;
  // As many as count still.
  double asked_blocks() const { return hubs_.asked + others_.asked; }
  std::uint64_t memory_bytes() const { return sizeof(*this) + stack_.memory_bytes(); }

 private:
  // 16 bins an octave: a rate is told for capacities that are 6% apart.
  static constexpr std::uint32_t kBinBits = 4;
  static constexpr std::size_t kBins = (64 - kBinBits) << kBinBits;
  static std::size_t bin_of(std::uint64_t distance);
  static std::uint64_t start_of(std::size_t bin);

  // What hubs and others were asked for, and the distances of those that were known.
  struct Counts {
    double asked = 0;     // exactly
    double followed = 0;  // of those
    std::array<float, kBins> hits{};

    double hits_up_to(std::uint64_t distance) const;  // as many of `asked`
  };

  void count(const AskedBlock& block);
  void put_on_top(const AskedBlock& block);
  void fade();

  Options options_;
  LruStack stack_;  // a block weighs as many as it stands for
  Counts hubs_;
  Counts others_;
  std::uint64_t until_fade_ = 0;
};

}  // namespace cairn
