#include "transport/store/redis_topology.hpp"

#include <boost/asio/post.hpp>
#include <unordered_map>
#include <utility>

#include "transport/store/redis_slots.hpp"

namespace cairn {
namespace {

// A cluster of 1,000 nodes, with two replicas each and four ranges per node, sends about 1.4 MB. An
// element takes 72 bytes here.
constexpr RedisLink::Most kMostOfCluster{.bytes = 4ull << 20, .elements = 1u << 18};
// A primary lists each of its replicas.
constexpr RedisLink::Most kMostOfRole{.bytes = 64 * 1024, .elements = 4'096};

RedisTopology::Slots slots_of(const std::vector<RedisSlotRange>& ranges) {
  RedisTopology::Slots slots;
  slots.owner_of.assign(kRedisSlots, RedisTopology::kNobody);
  std::unordered_map<std::string, std::uint16_t> known;
  for (const RedisSlotRange& range : ranges) {
    const std::string name = range.node.text();
    auto at = known.find(name);
    if (at == known.end()) {
      if (slots.nodes.size() >= RedisTopology::kMaxNodes) continue;
      at = known.emplace(name, static_cast<std::uint16_t>(slots.nodes.size())).first;
      slots.nodes.push_back(range.node);
    }
    for (std::uint32_t slot = range.first; slot <= range.last; ++slot) {
      slots.owner_of[slot] = at->second;
    }
  }
  return slots;
}

}  // namespace

RedisTopology::RedisTopology(const RedisSettings& settings, boost::asio::ssl::context* tls)
    : settings_(settings),
      tls_(tls),
      work_(io_.get_executor()),
      thread_("store-topology", [this](const std::stop_token&) {
        while (!guarded("store-topology", [this] { io_.run(); })) continue;
      }) {}

RedisTopology::~RedisTopology() {
  end();
  thread_.join();
}

void RedisTopology::ask(WireAddress node, UniqueFunction<void(Result<Slots>)> done) {
  boost::asio::post(io_, [this, node = std::move(node), done = std::move(done)]() mutable {
    done_ = std::move(done);
    if (has_ended_) return finish(Error{ErrorCode::cancelled, "the server ends"});
    begin(std::move(node));
  });
}

void RedisTopology::end() {
  boost::asio::post(io_, [this] {
    has_ended_ = true;
    if (done_) finish(Error{ErrorCode::cancelled, "the server ends"});
    work_.reset();
  });
}

void RedisTopology::begin(WireAddress node) {
  node_ = std::move(node);
  link_ = RedisLink::open({.io = io_,
                           .tls = tls_,
                           .settings = settings_,
                           .node = node_,
                           .ended = [this](const Error& why) {
                             if (done_) finish(why);
                           }});
  link_->send({.head = redis_command({"CLUSTER", "SLOTS"}),
               .most = kMostOfCluster,
               .done = [this](Result<RedisReply> reply) { answered_slots(std::move(reply)); }});
}

void RedisTopology::answered_slots(Result<RedisReply> reply) {
  if (!done_) return;
  if (!reply) return finish(std::move(reply).error());
  if (reply->is_error()) {
    // It is not part of a cluster.
    return link_->send(
        {.head = redis_command({"ROLE"}),
         .most = kMostOfRole,
         .done = [this](Result<RedisReply> role) { answered_role(std::move(role)); }});
  }
  const auto ranges = read_slots(*reply, node_);
  if (!ranges) {
    return finish(Error{ErrorCode::io_error, node_.text() + " describes an invalid cluster"});
  }
  finish(slots_of(*ranges));
}

void RedisTopology::answered_role(Result<RedisReply> reply) {
  if (!done_) return;
  if (!reply) return finish(std::move(reply).error());
  if (reply->is_error()) return finish(Error{ErrorCode::io_error, reply->text});
  const auto ranges = read_role(*reply, node_);
  if (!ranges) return finish(Error{ErrorCode::io_error, node_.text() + " sent an invalid role"});
  finish(slots_of(*ranges));
}

void RedisTopology::finish(Result<Slots> result) {
  auto done = std::exchange(done_, {});
  if (const auto link = std::exchange(link_, nullptr)) {
    link->fail({ErrorCode::cancelled, "it has answered"});
  }
  done(std::move(result));
}

}  // namespace cairn
