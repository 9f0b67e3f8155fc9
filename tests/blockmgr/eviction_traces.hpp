// Generates requests for tests of eviction orders.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "blockmgr/eviction/shadow_caches.hpp"

namespace cairn {

// A block's hash: GhostTable wants its bits mixed.
inline std::uint64_t hashed(std::uint64_t id) {
  std::uint64_t value = (id + 1) * 0x9E37'79B9'7F4A'7C15;
  value ^= value >> 29U;
  return value * 0xBF58'476D'1CE4'E5B9;
}

struct Trace {
  std::vector<std::vector<std::uint64_t>> prompts;
  std::vector<ShadowRequest> requests() const {
    std::vector<ShadowRequest> all;
    for (const auto& prompt : prompts) all.push_back({.blocks = prompt});
    return all;
  }
};

// Prompts on a random tree: each extends part of an earlier one, or starts a new one.
inline Trace random_trace(std::mt19937_64& random, std::size_t requests, std::size_t longest) {
  Trace trace;
  std::uint64_t next = 0;
  for (std::size_t i = 0; i < requests; ++i) {
    std::vector<std::uint64_t> prompt;
    if (!trace.prompts.empty() && random() % 4 != 0) {
      const auto& earlier = trace.prompts[random() % trace.prompts.size()];
      prompt.assign(earlier.begin(),
                    earlier.begin() + static_cast<std::ptrdiff_t>(random() % (earlier.size() + 1)));
    }
    for (std::size_t more = random() % 3; more > 0 && prompt.size() < longest; --more) {
      prompt.push_back(hashed(next++));
    }
    if (prompt.empty()) prompt.push_back(hashed(next++));
    trace.prompts.push_back(std::move(prompt));
  }
  return trace;
}

// Conversations with a few common beginnings. Each turn contains the earlier ones.
struct Conversations {
  std::size_t requests = 0;
  std::size_t open = 200;  // at a time
};
inline Trace conversations(std::mt19937_64& random, const Conversations& shape) {
  Trace trace;
  std::uint64_t next = 1000;
  std::vector<std::vector<std::uint64_t>> open;
  for (std::size_t i = 0; i < shape.requests; ++i) {
    if (open.size() < shape.open) {
      open.push_back({hashed(random() % 4)});
    }
    auto& turn = open[random() % open.size()];
    for (std::uint64_t more = 1 + random() % 8; more > 0; --more) turn.push_back(hashed(next++));
    trace.prompts.push_back(turn);
    if (turn.size() > 40) turn = open.back(), open.pop_back();
  }
  return trace;
}

// The share of all requested blocks that the caches hit.
inline double hit_rate(const Trace& trace, const ShadowCaches::Options& options) {
  ShadowCaches cache(options);
  double hits = 0;
  double blocks = 0;
  for (const auto& prompt : trace.prompts) {
    hits += cache.request({.blocks = prompt});
    blocks += static_cast<double>(prompt.size());
  }
  return hits / blocks;
}

}  // namespace cairn
