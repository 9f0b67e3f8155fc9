#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "blockmgr/cache/cache.hpp"
#include "blockmgr/index/key_index.hpp"
#include "blockmgr/index/slot_ref.hpp"

namespace cairn {

class CacheCore;

// The way out of a cache for copies that the caller starts, to another cache's tier or an agent's
// memory: what is copied is pinned, counts as used, and is neither evicted nor moved away. Bytes
// for the CPU come by BlockReader instead.
//
//   pin() → the copies; failed() of each that could not be read → let_go()
//
// One call at a time, but for failed(). What it pins goes with it.
class Outgoing {
 public:
  explicit Outgoing(std::shared_ptr<CacheCore> core) : core_(std::move(core)) {}
  ~Outgoing() { let_go(); }
  Outgoing(const Outgoing&) = delete;
  Outgoing& operator=(const Outgoing&) = delete;

  // What is known of a present key. It is pinned where `wants` says so.
  struct Source {
    std::size_t key = 0;  // of the keys
    std::optional<BlockKey> parent = {};
    std::string_view metadata = {};
  };
  using Wants = std::function<bool(const Source&)>;
  // Of each key the copy that is best read to bring it to memory of that kind: a device's memory
  // goes to a device directly, and the disk is slow. unknown_key where any is not present: what
  // was pinned before it stays until let_go(). Gives way.
  Result<> pin(std::span<const KeyView> keys, Tier to, const Wants& wants = {});
  // In the order of the keys, those that are wanted.
  std::span<const SlotRef> slots() const { return slots_; }
  // A copy whose bytes are lost is dropped. Thread-safe.
  void failed(std::size_t slot, const Error& error);
  // The prefix's last block first: so it is evicted first. Gives way.
  void let_go();

 private:
  const std::shared_ptr<CacheCore> core_;
  std::vector<SlotRef> slots_;
};

}  // namespace cairn
