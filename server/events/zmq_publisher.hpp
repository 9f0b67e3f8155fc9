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
  std::string topic;            // "{cache}" in it stands for the cache's name
  std::string cache;            // the one cache that is told of; empty: every one
  KvEventForm form;
  std::uint32_t kept_batches = 10'000;      // for replay
  std::uint32_t high_water_mark = 100'000;  // messages kept for a slow subscriber; older ones go
  std::uint32_t max_clients = 256;          // of each socket
};

// Publishes a manager's events over ZeroMQ in the form of vLLM's kv_events: three frames, the
// topic, the batch's number as 8 bytes big-endian, and the payload. Who sends a number to the
// replay socket is sent the batches kept from there on, then one numbered -1 without a payload. A
// thread of its own reads the manager's ring; a batch that could not be read in time is a number
// that is missing.
class ZmqPublisher {
 public:
  // Borrows the manager, the clock and the log. malformed, io_error where an endpoint cannot be
  // bound.
  static Result<std::unique_ptr<ZmqPublisher>> start(const ZmqSettings& settings,
                                                     const BlockManager& manager,
                                                     const Clock& clock, Logger& log);
  ~ZmqPublisher();

  // The endpoints as they were bound, with the port taken where it was given as 0 or *.
  const std::string& endpoint() const;
  std::string replay_endpoint() const;

 private:
  class Impl;
  explicit ZmqPublisher(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn
