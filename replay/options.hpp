#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "blockmgr/eviction/policy.hpp"
#include "client/endpoint.hpp"
#include "client/tls.hpp"
#include "replay/generator.hpp"
#include "replay/kv_model.hpp"
#include "replay/table_reader.hpp"

namespace cairn::replay {

// How a request's missing blocks are stored.
enum class StoreMode : std::uint8_t {
  slots,  // allocate, write each slot, commit: as an engine's frontend does
  write,  // one POST write for many blocks
};

// How a request's hits are read.
enum class ReadMode : std::uint8_t {
  read,  // one POST read for many blocks
  keys,  // one GET per block
  load,  // the server copies them into the engine's registered memory
};

// The cache that a replay creates for itself. A tier with 0 blocks is left out.
struct CacheShape {
  std::uint64_t device_blocks = 512;
  std::uint64_t pinned_blocks = 2048;
  std::uint64_t disk_blocks = 8192;
  std::uint64_t block_bytes = 65536;  // the inner dimension follows from the others
  std::uint64_t num_layers = 4;
  std::uint64_t outer_dim = 2;
  std::uint64_t page_size = 16;
  std::uint64_t dtype_width_bytes = 2;
  std::uint64_t alignment = 4096;
  std::string device_layout = "layer_separate";
  std::string offload = "on_evict";
  std::string disk_codec = "none";
  std::string eviction = {};  // empty: the server's default
};

// The hints of a frontend when a request ends, from reading ahead in the trace. Shares of 0 to 1;
// no hints if both are 0.
struct HintOptions {
  double ended = 0;  // of the ended conversations: `never`
  double when = 0;   // of all: within how many ms they resume, or never
  double right = 1;  // share of right hints; the others are the opposite, or a random time

  explicit operator bool() const { return ended > 0 || when > 0; }
};

// The actions of an agent framework, from reading ahead in the trace. Shares of 0 to 1.
struct ActionOptions {
  // At the pause of a conversation.
  enum class AtPause : std::uint8_t {
    none,
    fitting,  // a pin if the pause is short, else a demotion
    pin,
    retain,
    demote,
    within,  // the hint `within_ms` with the request's release
  };
  AtPause at_pause = AtPause::none;
  double paused = 0;    // share of the pauses with it
  double prefetch = 0;  // share of the next turns whose blocks are fetched before
  double right = 1;     // share of right actions; the others name other blocks or a wrong time

  explicit operator bool() const { return paused > 0 || prefetch > 0; }
};

// A simulated engine: how long it takes for what the server does not do.
struct EngineModel {
  double token_us = 0;  // for a token that it computes
  double block_us = 0;  // for a block that it takes into its own memory
  std::uint64_t key_tokens = 0;
};

// An order of eviction, or the server's use of one: it follows LRU while that does better.
struct SimulatedOrder {
  EvictionKind eviction = EvictionKind::lru;
  bool adapts = false;

  std::string_view name() const { return adapts ? "adaptive" : to_string(eviction); }
  friend bool operator==(const SimulatedOrder&, const SimulatedOrder&) = default;
};
inline constexpr SimulatedOrder kAdaptive{.eviction = EvictionKind::class_hazard, .adapts = true};

// A run without a server: the hit rates of caches of several sizes.
struct SimulationOptions {
  std::vector<std::uint32_t> capacities_blocks = {1000, 3000, 10'000, 30'000};
  std::vector<SimulatedOrder> policies = {
      {EvictionKind::lru}, {EvictionKind::class_hazard}, kAdaptive};
  std::uint64_t block_tokens = 512;
  std::string picture = {};  // a path; empty: none
};

struct ReplayOptions {
  HintOptions hints;
  ActionOptions actions;
  std::optional<SimulationOptions> simulation;  // set: the server and all its options are unused
  client::Endpoint server;
  std::string token;  // empty: none
  client::TlsFiles tls;
  std::string trace;                    // empty: `generator` makes the requests
  std::optional<TableColumns> columns;  // set: the trace is a table; nullopt: it is JSON lines
  std::uint64_t block_tokens = 512;     // tokens per block of the trace
  std::optional<KvModel> kv_model;      // set: caches have its KV groups
  GeneratorConfig generator;
  std::uint32_t connections = 4;
  std::uint64_t limit = 0;            // requests; 0: all of them
  std::optional<EngineModel> engine;  // set: its times are reported
  double speed = 0;  // 1: as fast as the trace; 2: twice as fast; 0: without waiting
  StoreMode store_mode = StoreMode::slots;
  ReadMode read_mode = ReadMode::read;
  std::uint64_t lease_ms = 30'000;
  std::uint32_t timeout_ms = 60'000;
  std::string cache;  // empty: a new one
  CacheShape shape;
  bool keep = false;
  bool json = false;
};

// nullopt if help was requested and printed to `out`. An error names the option.
Result<std::optional<ReplayOptions>> parse_options(std::span<const char* const> arguments,
                                                   std::ostream& out);

}  // namespace cairn::replay
