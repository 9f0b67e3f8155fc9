#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ssl/context.hpp>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.hpp"
#include "base/thread.hpp"
#include "base/unique_function.hpp"
#include "transport/store/redis_link.hpp"
#include "transport/store/redis_settings.hpp"

namespace cairn {

// Asks nodes which node has which slots, on a thread and over a connection of its own: an answer
// that tells of thousands takes milliseconds to be read, in which a match would wait.
class RedisTopology {
 public:
  // Redis' own limit of a cluster is 1,000. What more have is nobody's.
  static constexpr std::size_t kMaxNodes = 1'024;
  static constexpr std::uint16_t kNobody = UINT16_MAX;
  struct Slots {
    std::vector<WireAddress> nodes;       // each once
    std::vector<std::uint16_t> owner_of;  // of each slot: an index of `nodes`, or kNobody
  };

  // `settings` and `tls` (null: plain) outlive it.
  RedisTopology(const RedisSettings& settings, boost::asio::ssl::context* tls);
  ~RedisTopology();

  // unavailable: it is not reached; io_error: what it says is no answer. `done` runs on the thread.
  // REQUIRES: it has answered what it was asked before.
  void ask(WireAddress node, UniqueFunction<void(Result<Slots>)> done);
  // What is asked fails with `cancelled`.
  void end();

 private:
  void begin(WireAddress node);
  void answered_slots(Result<RedisReply> reply);
  void answered_role(Result<RedisReply> reply);
  void finish(Result<Slots> result);

  const RedisSettings& settings_;
  boost::asio::ssl::context* const tls_;
  boost::asio::io_context io_{1};
  WireAddress node_;
  std::shared_ptr<RedisLink> link_;
  UniqueFunction<void(Result<Slots>)> done_;
  bool has_ended_ = false;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  Thread thread_;  // last: it uses all the others
};

}  // namespace cairn
