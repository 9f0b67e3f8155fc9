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

// Finds out which node has which slots, on a separate thread and connection: parsing thousands of
// slots takes milliseconds, which would delay a match.
class RedisTopology {
 public:
  // Redis' own limit for a cluster is 1,000. Slots of further nodes have no owner.
  static constexpr std::size_t kMaxNodes = 1'024;
  static constexpr std::uint16_t kNobody = UINT16_MAX;
  struct Slots {
    std::vector<WireAddress> nodes;       // without duplicates
    std::vector<std::uint16_t> owner_of;  // per slot: an index into `nodes`, or kNobody
  };

  // Borrows `settings` and `tls` (null: plain); both must outlive it.
  RedisTopology(const RedisSettings& settings, boost::asio::ssl::context* tls);
  ~RedisTopology();

  // Asks a node. `done` runs on this object's thread. Errors: unavailable if it is not reached;
  // io_error for an invalid reply. REQUIRES: the previous call has completed.
  void ask(WireAddress node, UniqueFunction<void(Result<Slots>)> done);
  // A pending ask() fails with `cancelled`.
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
  Thread thread_;  // last: it uses all other members
};

}  // namespace cairn
