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

// Copies out of a cache that the caller starts, to another cache's tier or an agent's memory. The
// sources are pinned, so they are neither evicted nor moved, and they count as used. To read bytes
// on the CPU, use BlockReader.
//
//   pin() → the copies; failed() for each that could not be read → let_go()
//
// One call at a time, except failed(). The destructor releases the pins.
class Outgoing {
 public:
  explicit Outgoing(std::shared_ptr<CacheCore> core) : core_(std::move(core)) {}
  ~Outgoing() { let_go(); }
  Outgoing(const Outgoing&) = delete;
  Outgoing& operator=(const Outgoing&) = delete;

  // A present key. It is pinned unless `wants` returns false.
  struct Source {
    std::size_t key = 0;  // index in `keys`
    std::optional<BlockKey> parent = {};
    std::string_view metadata = {};
  };
  using Wants = std::function<bool(const Source&)>;
  // For each key, pins the copy that is read fastest into memory of that kind: device memory goes
  // to a device directly, and disk comes last. Error: unknown_key if a key is not present; keys
  // before it stay pinned until let_go(). Releases the lock between steps.
  Result<> pin(std::span<const KeyView> keys, Tier to, const Wants& wants = {});
  // The pinned copies, in the order of the keys.
  std::span<const SlotRef> slots() const { return slots_; }
  // Reports that a copy could not be read. Drops it if its bytes are lost. Thread-safe.
  void failed(std::size_t slot, const Error& error);
  // Releases the prefix's last block first, so that it is evicted first. Releases the lock between
  // steps.
  void let_go();

 private:
  const std::shared_ptr<CacheCore> core_;
  std::vector<SlotRef> slots_;
};

}  // namespace cairn
