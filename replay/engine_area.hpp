#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "client/cache_client.hpp"
#include "replay/target_cache.hpp"

namespace cairn::replay {

// The memory of a simulated engine, registered with the server as an agent: the server copies
// blocks into it. It ends with the connection that registered it. For one thread at a time.
class EngineArea {
 public:
  // A prompt of half a million tokens, in blocks of 512 tokens and 64 KiB.
  static constexpr std::size_t kMaxBytes = std::size_t{64} << 20U;

  // Registers memory for as many blocks of the cache as kMaxBytes hold, at least one. The
  // connection must be a Unix socket.
  static client::Answer<std::unique_ptr<EngineArea>> registered(client::CacheClient& client,
                                                                const TargetCache& target);
  ~EngineArea();
  EngineArea(const EngineArea&) = delete;
  EngineArea& operator=(const EngineArea&) = delete;

  std::size_t max_blocks() const { return blocks_; }
  // Copies the keys' blocks to the beginning of the memory, end to end, and returns them. All keys
  // must be stored; at most max_blocks().
  client::Answer<std::span<const std::byte>> load(client::CacheClient& client, client::KeyList keys,
                                                  std::uint64_t wait_ms);

 private:
  EngineArea(const TargetCache& target, std::size_t blocks);

  const std::string cache_;
  const std::string name_;
  const std::size_t block_bytes_;
  const std::size_t blocks_;
  std::span<std::byte> memory_ = {};
};

}  // namespace cairn::replay
