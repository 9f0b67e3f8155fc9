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

// Estimates what caches of other sizes would have hit: under LRU by stack distances, under the
// cache's own eviction order by small models of five sizes, and at the optimum for the last
// requests. The weight of a request halves after 16 times the cache's blocks were asked for (at
// least 262,144). Uses at most 4 MiB. Not thread-safe.
class CapacityCurve {
 public:
  struct Options {
    EvictionKind eviction = EvictionKind::lru;
    std::uint32_t capacity_blocks = 0;
  };
  explicit CapacityCurve(const Options& options);

  // A block that is not a hub is followed if its hash has none of these bits.
  std::uint64_t left_out_bits() const { return distances_.left_out_bits(); }

  struct Request {
    std::vector<AskedBlock> followed = {};  // its followed blocks, the prefix's first block first
    std::uint32_t blocks = 0;               // all of its blocks
    bool has_last = false;                  // the last followed block is the request's last
    std::int64_t unix_ms = 0;
    // Names the request in ended(), which is called soon; 0: it is not called.
    std::uint64_t ticket = 0;
  };
  void asked(Request request);
  void ended(std::uint64_t ticket, const RequestEnd& end);
  // Changes the request's ticket.
  void rename(std::uint64_t from, std::uint64_t to);
  // A block was stored that no request asked for.
  void stored(const AskedBlock& block) { distances_.stored(block); }

  struct Point {
    double lru = 0;  // share of the blocks asked for, 0 to 1
    double policy = 0;
  };
  Point at(std::uint64_t capacity_blocks) const;
  // The most that any eviction order could hit at the cache's own size, estimated from the last
  // requests. Computed on each call: about 10 ms.
  double optimum() const;
  // Whether the cache should follow LRU or its own order.
  const OrderChoice& choice() const { return choice_; }
  std::uint64_t requests() const { return requests_; }
  double blocks_per_s() const;
  std::uint64_t memory_bytes() const;

 private:
  // The eviction order in a cache of some size, with a sample of the blocks. It is compared with
  // LRU on the same sample: both have the same sampling error, so their difference is nearly that
  // of whole caches.
  struct Model {
    std::uint64_t capacity_blocks = 0;  // size of the modelled cache
    std::uint32_t room_blocks = 0;
    std::size_t sample = 0;
    double more_hits = 0;  // than LRU
  };
  // One block in `one_in`, chosen by its hash.
  struct Sample {
    std::uint32_t one_in = 1;
    LruCaches lru;
    std::vector<std::uint64_t> blocks = {};  // of the last request
    double asked_blocks = 0;                 // fades
  };
  // The last requests in order, for the optimum.
  struct Window {
    std::vector<std::uint64_t> blocks;
    std::vector<std::uint32_t> ends;
  };

  void update_models(const Request& request, const RequestEnd& end);
  void note_time(const Request& request, bool faded);
  double most() const;
  double gain_at(std::uint64_t capacity_blocks) const;
  double more_than_lru(std::size_t shadow, const Model& model) const;

  Options options_;
  std::uint32_t model_one_in_;
  StackDistances distances_;
  std::vector<Model> models_;  // the largest first; empty with lru
  // One for each model, then one of the cache's own size that follows choice_.
  std::optional<ShadowCaches> shadows_;
  std::vector<Sample> samples_;
  OrderChoice choice_;
  // Requests wait here for ended(), from which the models learn more.
  struct Waiting {
    Request request;
    std::optional<RequestEnd> end;
  };
  std::deque<Waiting> waiting_;
  std::size_t waiting_blocks_ = 0;
  std::uint32_t skipped_blocks_ = 0;
  std::array<Window, 2> windows_;  // the previous and the current one
  std::uint64_t requests_ = 0;
  std::int64_t last_unix_ms_ = 0;
  double seconds_ = 0;  // in which the blocks were asked for; fades with them
};

}  // namespace cairn
