#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "blockmgr/eviction/lru_stack.hpp"
#include "blockmgr/eviction/order_choice.hpp"
#include "blockmgr/eviction/shadow_caches.hpp"
#include "blockmgr/eviction/stack_distances.hpp"

namespace cairn {

// What caches of other sizes would have hit of a cache's requests: under LRU by stack distances,
// with the cache's own order of eviction by small models of five sizes, and at best, over the last
// requests. Requests count half after 16 times as many blocks as the cache has were asked for
// (262,144 in small caches). At most 4 MiB. Not thread-safe.
class CapacityCurve {
 public:
  struct Options {
    EvictionKind eviction = EvictionKind::lru;
    std::uint32_t capacity_blocks = 0;
  };
  explicit CapacityCurve(const Options& options);

  // Of blocks that are no hubs those are followed whose hash has none of these bits.
  std::uint64_t left_out_bits() const { return distances_.left_out_bits(); }

  struct Request {
    std::vector<AskedBlock> followed = {};  // of its blocks, the prefix's first one first
    std::uint32_t blocks = 0;               // all of them
    bool has_last = false;                  // the last one followed is the last of all
    std::int64_t unix_ms = 0;
    // ended() says with this how it ended, soon; 0: nobody will.
    std::uint64_t ticket = 0;
  };
  void asked(Request request);
  void ended(std::uint64_t ticket, const RequestEnd& end);
  // The request has another ticket from now on.
  void rename(std::uint64_t from, std::uint64_t to);
  // A block that nobody asked for.
  void stored(const AskedBlock& block) { distances_.stored(block); }

  struct Point {
    double lru = 0;  // of the blocks asked for, 0 to 1
    double policy = 0;
  };
  Point at(std::uint64_t capacity_blocks) const;
  // The most that any order of eviction could hit at the cache's own size, as far as the last
  // requests tell. Computed when it is asked for: some 10 ms.
  double optimum() const;
  // Which of LRU and the cache's own order it should go by.
  const OrderChoice& choice() const { return choice_; }
  std::uint64_t requests() const { return requests_; }
  double blocks_per_s() const;
  std::uint64_t memory_bytes() const;

 private:
  // The order of eviction in a cache of some size, of a sample of the blocks. It is compared
  // with LRU on the same sample: what chance puts into that is in both, so that what they differ by
  // is nearly that of whole caches.
  struct Model {
    std::uint64_t capacity_blocks = 0;  // that it stands for
    std::uint32_t room_blocks = 0;
    std::size_t sample = 0;
    double more_hits = 0;  // than LRU has
  };
  // One block in so many, chosen by its hash.
  struct Sample {
    std::uint32_t one_in = 1;
    LruCaches lru;
    std::vector<std::uint64_t> blocks = {};  // of the last request
    double asked_blocks = 0;                 // fades
  };
  // Requests one after the other, for what needs to look ahead.
  struct Window {
    std::vector<std::uint64_t> blocks;
    std::vector<std::uint32_t> ends;
  };

  void tell_models(const Request& request, const RequestEnd& end);
  void note_time(const Request& request, bool faded);
  double most() const;
  double gain_at(std::uint64_t capacity_blocks) const;
  double more_than_lru(std::size_t shadow, const Model& model) const;

  Options options_;
  std::uint32_t model_one_in_;
  StackDistances distances_;
  std::vector<Model> models_;  // the largest first; none with lru
  // Those, and behind them one of the cache's own size, as it is with choice_.
  std::optional<ShadowCaches> shadows_;
  std::vector<Sample> samples_;
  OrderChoice choice_;
  // How a request ended tells the models more: these wait for that.
  struct Waiting {
    Request request;
    std::optional<RequestEnd> end;
  };
  std::deque<Waiting> waiting_;
  std::size_t waiting_blocks_ = 0;
  std::uint32_t skipped_blocks_ = 0;
  std::array<Window, 2> windows_;  // the one before, and the one that grows
  std::uint64_t requests_ = 0;
  std::int64_t last_unix_ms_ = 0;
  double seconds_ = 0;  // that the blocks asked for took; fades as they do
};

}  // namespace cairn
