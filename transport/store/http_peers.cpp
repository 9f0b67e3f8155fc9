#include "transport/store/http_peers.hpp"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <list>
#include <map>
#include <utility>

#include "base/mutex.hpp"
#include "base/pieces.hpp"
#include "base/thread.hpp"
#include "transport/store/circuit.hpp"
#include "transport/store/peer_link.hpp"

namespace cairn {
namespace {

namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;

// Servers known at a time, because the store may name any number. The least recently used one is
// replaced.
constexpr std::size_t kMaxPeers = 4'096;
// A server without requests for this long is forgotten.
constexpr std::chrono::minutes kIdle = NodeDurations::kIdle;

struct Peer {
  std::string name;
  PeerUrl url;
  std::vector<std::shared_ptr<PeerLink>> links;
  Circuit circuit;
  std::string last_error = {};
  Clock::time_point asked = {};  // time of the last request
  std::list<Peer*>::iterator turn = {};
  bool is_leaving = false;

  std::size_t queued() const {
    std::size_t all = 0;
    for (const auto& link : links) all += link ? link->queued() : 0;
    return all;
  }
};

std::vector<uid_t> socket_owners(const PeerSettings& settings) {
  std::vector<uid_t> owners = settings.unix_users;
  if (!settings.needs_tls) owners.push_back(::geteuid());
  return owners;
}

class HttpPeers final : public BlockPeers {
 public:
  HttpPeers(PeerSettings settings, std::unique_ptr<asio::ssl::context> tls)
      : settings_(std::move(settings)),
        tls_(std::move(tls)),
        socket_owners_(socket_owners(settings_)),
        work_(io_.get_executor()),
        thread_("shared-peers", [this](const std::stop_token&) {
          while (!guarded("shared-peers", [this] { io_.run(); })) continue;
        }) {}

  ~HttpPeers() override {
    asio::post(io_, [this] { end(); });
    thread_.join();
  }

  void read(Read read, UniqueFunction<void(Result<std::size_t>)> done) override {
    asio::post(io_, [this, read = std::move(read), done = std::move(done)]() mutable {
      begin(std::move(read), std::move(done));
    });
  }

  Stats stats() const override {
    Stats stats;
    {
      MutexLock lock(mutex_);
      stats = stats_;
      stats.by_server = by_server_.snapshot();
      for (const auto& [name, server] : servers_) {
        stats.servers.push_back({.address = name,
                                 .is_open = Clock::now() < server.open_until,
                                 .last_error = server.last_error});
      }
    }
    stats.reads.durations = durations_.snapshot();
    return stats;
  }

 private:
  void begin(Read read, UniqueFunction<void(Result<std::size_t>)> done) {
    auto counted = [this, begun = Clock::now(), part_bytes = read.part_bytes,
                    done = std::move(done)](Result<std::size_t> result) mutable {
      count(result, Clock::now() - begun, part_bytes);
      done(std::move(result));
    };
    auto peer = peer_of(read.server);
    if (!peer) return counted(std::move(peer).error());
    auto link = link_with_room(**peer);
    if (!link) return counted(std::move(link).error());
    PeerLink::Request request{
        .text = text_of(**peer, read), .into = std::move(read.into), .part_bytes = read.part_bytes};
    request.done = [this, peer = *peer, asked_at = Clock::now(),
                    counted = std::move(counted)](Result<PeerLink::Answer> answer) mutable {
      {
        MutexLock lock(mutex_);
        by_server_.record({.node = peer->name,
                           .operation = StoreOperation::read,
                           .begun = asked_at,
                           .ended = Clock::now()});
      }
      counted(answer ? taken(*peer, *answer) : Result<std::size_t>(std::move(answer).error()));
    };
    (*link)->send(std::move(request));
  }

  Result<PeerLink*> link_with_room(Peer& peer) {
    if (peer.queued() >= settings_.max_queued) {
      return Error{ErrorCode::queue_full, "too many reads wait for " + peer.name};
    }
    PeerLink* const link = link_of(peer);
    if (link != nullptr) return link;
    return Error{ErrorCode::unavailable,
                 peer.name + " is paused after a failure: " + peer.last_error};
  }

  // Errors about the server itself pause it; errors about a block do not.
  Result<std::size_t> taken(Peer& peer, const PeerLink::Answer& answer) {
    const bool refuses = answer.status == 401 || answer.status == 403 || answer.status == 421;
    if (refuses) {
      peer.last_error = peer.name + " answered " + std::to_string(answer.status);
      peer.circuit.failed(random_);
      note_state(peer);
      return Error{ErrorCode::io_error, peer.last_error};
    }
    if (!peer.last_error.empty()) {
      peer.last_error.clear();
      peer.circuit.answered();
      note_state(peer);
    }
    if (answer.parts) return *answer.parts;
    if (answer.status == 404) return 0;
    if (answer.status == 200) {
      return Error{ErrorCode::wrong_length, "the blocks have another length"};
    }
    return Error{ErrorCode::io_error, peer.name + " answered " + std::to_string(answer.status)};
  }

  std::string text_of(const Peer& peer, const Read& read) const {
    const WireAddress& address = peer.url.address;
    std::string text = "POST " + read.target + " HTTP/1.1\r\nHost: ";
    text += address.unix_path.empty() ? address.text() : "localhost";
    text += "\r\nAccept: application/octet-stream\r\nContent-Type: application/json\r\n";
    if (!settings_.token.empty()) text += "Authorization: Bearer " + settings_.token + "\r\n";
    text += "Content-Length: " + std::to_string(read.body.size()) + "\r\n\r\n";
    return text + read.body;
  }

  Result<std::shared_ptr<Peer>> peer_of(const std::string& server) {
    if (stopping_) return Error{ErrorCode::cancelled, "the server ends"};
    if (const auto at = peers_.find(server); at != peers_.end()) {
      at->second->asked = Clock::now();
      turns_.splice(turns_.end(), turns_, at->second->turn);
      return at->second;
    }
    auto url = read_peer_url(server);
    if (!url) return std::move(url).error();
    const bool is_unix = !url->address.unix_path.empty();
    if (settings_.needs_tls && !url->tls && !(is_unix && !socket_owners_.empty())) {
      return Error{ErrorCode::malformed,
                   server + " is not https://, which shared.peer.ca requires"};
    }
    forget_gone();
    if (peers_.size() >= kMaxPeers) {
      return Error{ErrorCode::queue_full, "too many servers are asked at once"};
    }
    auto peer = std::make_shared<Peer>();
    peer->name = server;
    peer->url = std::move(*url);
    peer->links.resize(std::max(1U, settings_.connections));
    peer->asked = Clock::now();
    peer->turn = turns_.insert(turns_.end(), peer.get());
    peers_.emplace(server, peer);
    note_state(*peer);
    return peer;
  }

  // Forgets servers without recent requests. If all places are taken, also forgets the least
  // recently used ones that are idle.
  void forget_gone() {
    const Clock::time_point now = Clock::now();
    for (auto at = turns_.begin(); at != turns_.end();) {
      Peer& peer = **at++;
      if (peers_.size() < kMaxPeers && now - peer.asked < kIdle) return;
      if (peer.queued() == 0) forget(peer);
    }
  }

  void forget(Peer& peer) {
    const auto keep = peers_.extract(peer.name).mapped();
    turns_.erase(peer.turn);
    peer.is_leaving = true;
    for (auto& place : peer.links) {
      if (const auto link = place) link->fail({ErrorCode::unavailable, peer.name + " has gone"});
    }
    MutexLock lock(mutex_);
    servers_.erase(peer.name);
  }

  // Returns the connection with the fewest requests; null during the server's pause after a
  // failure.
  PeerLink* link_of(Peer& peer) {
    std::shared_ptr<PeerLink>* best = &peer.links.front();
    for (auto& link : peer.links) {
      if (!*best || (*best)->queued() == 0) break;
      if (!link || link->queued() < (*best)->queued()) best = &link;
    }
    if (*best) return best->get();
    if (stopping_ || peer.circuit.is_open()) return nullptr;
    *best = PeerLink::open({.io = io_,
                            .tls = peer.url.tls ? tls_.get() : nullptr,
                            .address = peer.url.address,
                            .unix_owners = socket_owners_,
                            .timeout = std::chrono::milliseconds(settings_.timeout_ms),
                            .ended = [this, &peer, &link = *best](const PeerLink::End& end) {
                              ended(peer, link, end);
                            }});
    return best->get();
  }

  void ended(Peer& peer, std::shared_ptr<PeerLink>& place, const PeerLink::End& end) {
    const std::shared_ptr<PeerLink> link = std::exchange(place, nullptr);
    if (peer.is_leaving) return;
    if (end.failure && !stopping_) {
      peer.last_error = end.failure->detail;
      peer.circuit.failed(random_);
      note_state(peer);
    }
    for (PeerLink::Request& request : link->take_unanswered()) {
      auto next = link_with_room(peer);
      if (!next) {
        request.done(std::move(next).error());
      } else {
        (*next)->send(std::move(request));
      }
    }
  }

  void count(const Result<std::size_t>& result, Clock::duration took, std::uint64_t part_bytes) {
    durations_.record(static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(took).count()));
    const StoreOutcome outcome =
        outcome_of(result ? Result<bool>(*result > 0) : Result<bool>(result.error()));
    MutexLock lock(mutex_);
    ++stats_.reads.outcomes[static_cast<std::size_t>(outcome)];
    if (result) stats_.reads.bytes += *result * part_bytes;
  }

  void note_state(const Peer& peer) {
    if (peer.is_leaving) return;
    MutexLock lock(mutex_);
    servers_[peer.name] = {.last_error = peer.last_error, .open_until = peer.circuit.open_until()};
  }

  void end() {
    stopping_ = true;
    const Error why{ErrorCode::cancelled, "the server ends"};
    for (auto& [name, peer] : peers_) {
      for (auto& place : peer->links) {
        if (const auto link = place) link->fail(why);
      }
    }
    work_.reset();
  }

  const PeerSettings settings_;
  const std::unique_ptr<asio::ssl::context> tls_;
  const std::vector<uid_t> socket_owners_;
  // Only for the thread:
  asio::io_context io_{1};
  std::map<std::string, std::shared_ptr<Peer>> peers_;
  std::list<Peer*> turns_;  // least recently used first
  bool stopping_ = false;
  std::minstd_rand random_{std::random_device{}()};

  mutable Mutex mutex_;
  Stats stats_ CAIRN_GUARDED_BY(mutex_);  // without its servers
  NodeDurations by_server_ CAIRN_GUARDED_BY(mutex_);
  // open_until is a time, because the end of a pause is not reported.
  struct ServerState {
    std::string last_error;
    Clock::time_point open_until;
  };
  std::map<std::string, ServerState> servers_ CAIRN_GUARDED_BY(mutex_);
  DurationHistogram durations_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  Thread thread_;  // last: it uses all other members
};

}  // namespace

Result<std::unique_ptr<BlockPeers>> make_http_peers(PeerSettings settings) {
  auto tls = make_wire_tls(settings.tls);
  if (!tls) return std::move(tls).error();
  return std::unique_ptr<BlockPeers>(
      std::make_unique<HttpPeers>(std::move(settings), std::move(*tls)));
}

}  // namespace cairn
