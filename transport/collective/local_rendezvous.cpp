#include "transport/collective/local_rendezvous.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>

#include "base/hex.hpp"
#include "transport/collective/handshake.hpp"

namespace cairn {
namespace {

constexpr std::string_view kLocalPrefix = "local:";
// The longest numeric address with its zone.
constexpr std::size_t kMaxHostBytes = 60;

// The address a rank listens on, as rank 0 sends it to the others.
struct Whereabouts {
  std::array<char, kMaxHostBytes> host{};
  std::uint32_t port = 0;
};
static_assert(sizeof(Whereabouts) == 64, "it travels between machines as it lies in memory");

Error at_rank(std::uint32_t rank, const Error& error) {
  return {error.code, "rank " + std::to_string(rank) + ": " + error.detail};
}

class Meeting {
 public:
  Meeting(const Rendezvous& rendezvous, const JoinStop& stop)
      : my_(rendezvous),
        wait_{.until = rendezvous.until, .stop_fd = stop.fd()},
        sockets_(rendezvous.place.world_size) {}

  Result<std::vector<LinkSocket>> as_host();
  Result<std::vector<LinkSocket>> as_guest(UniqueFunction<void()> accepted);

 private:
  std::uint32_t rank() const { return my_.place.rank; }
  std::uint32_t world() const { return my_.place.world_size; }
  Result<> seat_all();
  void clear_empty_seats();
  std::vector<int> seated() const;
  std::string missing() const;
  Result<> check(const Hello& hello, std::uint32_t min_rank) const;
  void notify_all(const Result<>& verdict);
  Result<> hand_out_addresses();
  Result<> connect_below(const std::vector<Whereabouts>& addresses, std::uint32_t own_port);
  Result<> accept_above(const LinkSocket& listener);
  Result<LinkSocket> say_hello(const LinkAddress& address, std::uint32_t own_port);

  const Rendezvous& my_;
  const LinkWait wait_;
  std::vector<LinkSocket> sockets_;
  std::vector<std::uint32_t> ports_;  // rank 0: the others' listening ports
};

Result<> Meeting::check(const Hello& hello, std::uint32_t min_rank) const {
  if (hello.world_size != world()) {
    return Error{ErrorCode::state_conflict, "world_size is " + std::to_string(hello.world_size) +
                                                " here and " + std::to_string(world()) +
                                                " on rank " + std::to_string(rank())};
  }
  if (hello.rank < min_rank || hello.rank >= world()) {
    return Error{ErrorCode::out_of_range, "rank is " + std::to_string(hello.rank) + ", not " +
                                              std::to_string(min_rank) + " to " +
                                              std::to_string(world() - 1)};
  }
  if (sockets_[hello.rank]) {
    return Error{ErrorCode::rank_taken,
                 "rank " + std::to_string(hello.rank) + " has joined already"};
  }
  return {};
}

std::vector<int> Meeting::seated() const {
  std::vector<int> fds;
  for (const LinkSocket& socket : sockets_) {
    if (socket) fds.push_back(socket.fd());
  }
  return fds;
}

// A waiting rank sends nothing, so a readable socket has been closed.
void Meeting::clear_empty_seats() {
  for (LinkSocket& socket : sockets_) {
    std::byte unused{};
    if (socket && ::recv(socket.fd(), &unused, 1, MSG_DONTWAIT | MSG_PEEK) >= 0) socket.close();
  }
}

std::string Meeting::missing() const {
  std::string ranks;
  for (std::uint32_t other = 1; other < world(); ++other) {
    if (!sockets_[other]) ranks += (ranks.empty() ? "" : ", ") + std::to_string(other);
  }
  return ranks;
}

Result<> Meeting::seat_all() {
  Handshake handshake(*my_.listener, my_.id.secret);
  ports_.resize(world());
  while (!missing().empty()) {
    auto arrival = handshake.next(seated(), wait_);
    if (!arrival) {
      if (arrival.error().code != ErrorCode::deadline_exceeded) return std::move(arrival).error();
      return Error{ErrorCode::deadline_exceeded, "after " + std::to_string(my_.timeout.count()) +
                                                     " ms, not here: rank " + missing()};
    }
    if (!*arrival) {
      clear_empty_seats();
      continue;
    }
    LinkSocket socket = std::move((*arrival)->socket);
    const Hello& hello = (*arrival)->hello;
    const auto welcome = check(hello, 1);
    const auto sent = send_verdict(socket, welcome, wait_);
    if (!welcome || !sent) continue;
    sockets_[hello.rank] = std::move(socket);
    ports_[hello.rank] = hello.port;
  }
  return {};
}

void Meeting::notify_all(const Result<>& verdict) {
  const LinkWait at_once{.until = std::chrono::steady_clock::now(), .stop_fd = -1};
  for (const LinkSocket& socket : sockets_) {
    if (socket) static_cast<void>(send_verdict(socket, verdict, at_once));
  }
}

Result<> Meeting::hand_out_addresses() {
  std::vector<Whereabouts> addresses(world());
  for (std::uint32_t other = 1; other < world(); ++other) {
    const std::string host = peer_host(sockets_[other]);
    std::copy_n(host.begin(), std::min(host.size(), kMaxHostBytes - 1),
                addresses[other].host.begin());
    addresses[other].port = ports_[other];
  }
  for (std::uint32_t other = 1; other < world(); ++other) {
    auto sent = send_verdict(sockets_[other], Result<>(), wait_);
    if (sent) sent = write_all(sockets_[other], std::as_bytes(std::span(addresses)), wait_);
    if (!sent) return at_rank(other, sent.error());
  }
  // Each rank reports that it is connected to all others, or the error.
  for (std::uint32_t other = 1; other < world(); ++other) {
    const auto verdict = receive_verdict(sockets_[other], wait_);
    if (!verdict) return at_rank(other, verdict.error());
  }
  return {};
}

Result<std::vector<LinkSocket>> Meeting::as_host() {
  auto met = seat_all();
  if (met) met = hand_out_addresses();
  notify_all(met);
  if (!met) return std::move(met).error();
  return std::move(sockets_);
}

Result<LinkSocket> Meeting::say_hello(const LinkAddress& address, std::uint32_t own_port) {
  auto socket = connect_to(address, wait_);
  if (!socket) return socket;
  const Hello hello{
      .secret = my_.id.secret, .rank = rank(), .world_size = world(), .port = own_port};
  CAIRN_TRY(write_all(*socket, std::as_bytes(std::span(&hello, 1)), wait_));
  CAIRN_TRY(receive_verdict(*socket, wait_));
  return socket;
}

Result<> Meeting::connect_below(const std::vector<Whereabouts>& addresses, std::uint32_t own_port) {
  for (std::uint32_t other = 1; other < rank(); ++other) {
    const Whereabouts& at = addresses[other];
    const std::string host(at.host.data(), ::strnlen(at.host.data(), at.host.size()));
    auto socket = say_hello({.host = host, .port = static_cast<std::uint16_t>(at.port)}, own_port);
    if (!socket) return at_rank(other, socket.error());
    sockets_[other] = std::move(*socket);
  }
  return {};
}

Result<> Meeting::accept_above(const LinkSocket& listener) {
  Handshake handshake(listener, my_.id.secret);
  const auto all_there = [this] {
    return std::all_of(sockets_.begin() + rank() + 1, sockets_.end(),
                       [](const LinkSocket& socket) { return static_cast<bool>(socket); });
  };
  while (!all_there()) {
    // Rank 0 sends nothing until all ranks are connected, unless one has failed.
    auto arrival = handshake.next({sockets_[0].fd()}, wait_);
    if (!arrival) return std::move(arrival).error();
    if (!*arrival) {
      CAIRN_TRY(receive_verdict(sockets_[0], wait_));
      return Error{ErrorCode::state_conflict, "rank 0 went on without this rank"};
    }
    const auto welcome = check((*arrival)->hello, rank() + 1);
    const auto sent = send_verdict((*arrival)->socket, welcome, wait_);
    if (welcome && sent) sockets_[(*arrival)->hello.rank] = std::move((*arrival)->socket);
  }
  return {};
}

Result<std::vector<LinkSocket>> Meeting::as_guest(UniqueFunction<void()> accepted) {
  auto socket = connect_to(my_.id.address, wait_);
  if (!socket) return std::move(socket).error();
  // Listen on the interface that leads to rank 0; the other ranks can reach it too.
  auto listener = listen_on({.host = own_host(*socket), .port = 0});
  if (!listener) return std::move(listener).error();
  const std::uint32_t own_port = port_of(*listener);
  const Hello hello{
      .secret = my_.id.secret, .rank = rank(), .world_size = world(), .port = own_port};
  CAIRN_TRY(write_all(*socket, std::as_bytes(std::span(&hello, 1)), wait_));
  CAIRN_TRY(receive_verdict(*socket, wait_));
  accepted();
  sockets_[0] = std::move(*socket);
  CAIRN_TRY(receive_verdict(sockets_[0], wait_));
  std::vector<Whereabouts> addresses(world());
  CAIRN_TRY(read_all(sockets_[0], std::as_writable_bytes(std::span(addresses)), wait_));
  auto connected = connect_below(addresses, own_port);
  if (connected) connected = accept_above(*listener);
  CAIRN_TRY(send_verdict(sockets_[0], connected, wait_));
  if (!connected) return std::move(connected).error();
  CAIRN_TRY(receive_verdict(sockets_[0], wait_));
  return std::move(sockets_);
}

}  // namespace

std::string LocalUniqueId::text() const {
  std::string plain(reinterpret_cast<const char*>(secret.data()), secret.size());
  plain += std::to_string(address.port) + " " + address.host;
  std::string all(kLocalPrefix);
  append_hex(all, std::as_bytes(std::span(plain)));
  return all;
}

Result<LocalUniqueId> parse_local_unique_id(std::string_view text) {
  const Error wrong{ErrorCode::malformed, "unique_id is not a local group's"};
  if (!text.starts_with(kLocalPrefix)) return wrong;
  const std::string_view hex = text.substr(kLocalPrefix.size());
  std::string plain(hex.size() / 2, '\0');
  LocalUniqueId id;
  if (!from_hex(hex, std::as_writable_bytes(std::span(plain))) || plain.size() < id.secret.size()) {
    return wrong;
  }
  std::memcpy(id.secret.data(), plain.data(), id.secret.size());
  const std::string_view address = std::string_view(plain).substr(id.secret.size());
  const auto [end, error] =
      std::from_chars(address.data(), address.data() + address.size(), id.address.port);
  const auto at = static_cast<std::size_t>(end - address.data());
  if (error != std::errc() || at + 1 >= address.size() || address[at] != ' ') return wrong;
  id.address.host = address.substr(at + 1);
  // Otherwise the host that is looked up would differ from the one that is shown.
  if (id.address.host.find('\0') != std::string::npos) return wrong;
  return id;
}

Result<std::vector<LinkSocket>> meet(const Rendezvous& rendezvous, const JoinStop& stop,
                                     UniqueFunction<void()> accepted) {
  Meeting meeting(rendezvous, stop);
  if (rendezvous.place.rank > 0) return meeting.as_guest(std::move(accepted));
  accepted();
  return meeting.as_host();
}

}  // namespace cairn
