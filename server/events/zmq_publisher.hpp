#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/result.hpp"
#include "blockmgr/block_manager.hpp"
#include "server/events/kv_payload.hpp"

namespace cairn {

struct ZmqSettings {
  std::string endpoint;         // of the PUB socket, e.g. "tcp://127.0.0.1:5557"; empty: none
  std::string replay_endpoint;  // of the ROUTER socket; empty: none
  std::string topic;            // "{cache}" is replaced by the cache's name
  std::string cache;            // publish only this cache; empty: all
  KvEventForm form;
  std::uint32_t kept_batches = 10'000;      // for replay
  std::uint32_t high_water_mark = 100'000;  // messages kept for a slow subscriber; drops older ones
  std::uint32_t max_clients = 256;          // per socket
};

// Publishes a manager's events over ZeroMQ in the form of vLLM's kv_events. A message has three
// frames: topic, batch number (8 bytes, big-endian), payload. A client that sends a number to the
// replay socket gets the kept batches from there on, then one numbered -1 without payload. A thread
// reads the manager's ring; if it is too slow for some events, a number is missing.
class ZmqPublisher {
 public:
  // Borrows the manager, the clock and the log. Errors: malformed, or the listener's if an endpoint
  // cannot be bound.
  static Result<std::unique_ptr<ZmqPublisher>> start(const ZmqSettings& settings,
                                                     const BlockManager& manager,
                                                     const Clock& clock, Logger& log);
  ~ZmqPublisher();

  // The bound endpoints, with the actual port if it was given as 0 or *.
  const std::string& endpoint() const;
  std::string replay_endpoint() const;

 private:
  class Impl;
  explicit ZmqPublisher(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn
