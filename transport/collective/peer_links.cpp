#include "transport/collective/peer_links.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/assert.hpp"
#include "base/pieces.hpp"

namespace cairn {
namespace {

constexpr std::uint32_t kMessage = 0x31'47'4D'43;   // "CMG1"
constexpr std::uint32_t kFarewell = 0x31'59'42'43;  // "CBY1"
// Longer messages are cut.
constexpr std::size_t kMaxFarewellBytes = 400;
// Per system call: 8 MiB in regions of 32 KiB.
constexpr std::size_t kMaxPiecesAtOnce = 256;

struct Head {
  std::uint32_t magic = kMessage;
  std::uint32_t topic = 0;  // a farewell: the error code
  std::uint32_t detail = 0;
  std::uint32_t reserved = 0;
  std::uint64_t size_bytes = 0;
};
static_assert(sizeof(Head) == 24, "heads travel between machines as they lie in memory");

// A position in a list of pieces.
class PieceCursor {
 public:
  explicit PieceCursor(std::span<const iovec> pieces) : pieces_(pieces) { skip_ended(); }

  bool at_end() const { return next_ == pieces_.size(); }
  std::uint64_t passed_bytes() const { return passed_bytes_; }

  using Batch = std::array<iovec, kMaxPiecesAtOnce>;
  // Returns the next pieces, at most `max_bytes`.
  std::span<iovec> take(Batch& batch, std::uint64_t max_bytes) const {
    std::size_t count = 0;
    std::size_t offset = offset_;
    for (std::size_t i = next_; i < pieces_.size() && count < batch.size() && max_bytes > 0; ++i) {
      const std::size_t size = std::min<std::uint64_t>(pieces_[i].iov_len - offset, max_bytes);
      batch[count++] = {static_cast<char*>(pieces_[i].iov_base) + offset, size};
      max_bytes -= size;
      offset = 0;
    }
    return {batch.data(), count};
  }
  void pass(std::uint64_t bytes) {
    passed_bytes_ += bytes;
    while (bytes > 0) {
      const std::uint64_t here = std::min<std::uint64_t>(bytes, pieces_[next_].iov_len - offset_);
      offset_ += here;
      bytes -= here;
      skip_ended();
    }
  }

 private:
  void skip_ended() {
    while (next_ < pieces_.size() && offset_ == pieces_[next_].iov_len) {
      ++next_;
      offset_ = 0;
    }
  }

  std::span<const iovec> pieces_;
  std::size_t next_ = 0;
  std::size_t offset_ = 0;
  std::uint64_t passed_bytes_ = 0;
};

std::string rank_text(std::uint32_t rank) { return "rank " + std::to_string(rank); }

}  // namespace

class PeerLinks::Run {
 public:
  Run(PeerLinks& links, Subject subject, std::span<const Flow> flows)
      : links_(links), quiet_(links.place_.world_size, true) {
    for (const Flow& flow : flows) {
      CAIRN_ASSERT(flow.peer < links.place_.world_size && flow.peer != links.place_.rank,
                   "a message to nobody would never end");
      moves_.emplace_back(flow, subject);
      if (flow.way == Flow::Way::in) incoming_ = moves_.size() - 1;
    }
  }

  Result<> to_the_end(const LinkWait& wait) {
    ready_.assign(moves_.size(), true);
    while (true) {
      bool all_ended = true;
      for (std::size_t i = 0; i < moves_.size(); ++i) {
        if (!ready_[i] || moves_[i].ended()) continue;
        CAIRN_TRY(moves_[i].flow.way == Flow::Way::out ? send(moves_[i]) : receive(moves_[i]));
      }
      for (const Move& move : moves_) all_ended = all_ended && move.ended();
      if (all_ended) return {};
      CAIRN_TRY(wait_for_some(wait));
    }
  }

  const std::vector<bool>& quiet() const { return quiet_; }

 private:
  struct Move {
    Move(const Flow& of, Subject subject)
        : flow(of),
          head({.topic = static_cast<std::uint32_t>(subject.topic),
                .detail = subject.detail,
                .size_bytes = total_bytes(of.pieces)}),
          cursor(of.pieces) {}
    bool ended() const { return head_done == sizeof head && cursor.at_end(); }

    const Flow& flow;
    Head head;
    Head found = {};  // incoming: the head received
    std::size_t head_done = 0;
    PieceCursor cursor;
  };

  std::uint64_t may_send(const Move& move) const {
    const std::uint64_t left = move.head.size_bytes - move.cursor.passed_bytes();
    if (!move.flow.forwards) return left;
    return std::min(left, moves_[incoming_].cursor.passed_bytes() - move.cursor.passed_bytes());
  }

  Result<> send(Move& move) {
    const int fd = links_.sockets_[move.flow.peer].fd();
    while (!move.ended()) {
      iovec* first = batch_.data();
      std::size_t count = 0;
      if (move.head_done < sizeof move.head) {
        batch_[0] = {reinterpret_cast<char*>(&move.head) + move.head_done,
                     sizeof move.head - move.head_done};
        count = 1;
      } else {
        const auto taken = move.cursor.take(batch_, may_send(move));
        first = taken.data();
        count = taken.size();
        if (count == 0) return {};  // the data to forward has not arrived yet
      }
      msghdr message{};
      message.msg_iov = first;
      message.msg_iovlen = count;
      const ssize_t sent = ::sendmsg(fd, &message, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return {};
      if (sent < 0) return lost(move.flow.peer);
      const auto bytes = static_cast<std::uint64_t>(sent);
      if (move.head_done < sizeof move.head) {
        move.head_done += bytes;
      } else {
        move.cursor.pass(bytes);
      }
      quiet_[move.flow.peer] = move.ended();
    }
    return {};
  }

  Result<> receive(Move& move) {
    const int fd = links_.sockets_[move.flow.peer].fd();
    while (!move.ended()) {
      const bool in_head = move.head_done < sizeof move.head;
      iovec* first = batch_.data();
      std::size_t count = 1;
      if (in_head) {
        batch_[0] = {reinterpret_cast<char*>(&move.found) + move.head_done,
                     sizeof move.found - move.head_done};
      } else {
        const auto taken = move.cursor.take(batch_, UINT64_MAX);
        first = taken.data();
        count = taken.size();
      }
      msghdr message{};
      message.msg_iov = first;
      message.msg_iovlen = count;
      const ssize_t got = ::recvmsg(fd, &message, 0);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return {};
      if (got <= 0) return gone(move.flow.peer);
      const auto bytes = static_cast<std::uint64_t>(got);
      if (!in_head) {
        move.cursor.pass(bytes);
        continue;
      }
      move.head_done += bytes;
      if (move.head_done == sizeof move.head) CAIRN_TRY(check_head(move));
    }
    return {};
  }

  Result<> check_head(const Move& move) const {
    const Head& found = move.found;
    const std::string who = rank_text(move.flow.peer);
    if (found.magic == kFarewell) return farewell(move.flow.peer, found);
    if (found.magic != kMessage) {
      return Error{ErrorCode::state_conflict, who + " sent something other than a message"};
    }
    if (found.topic != move.head.topic || found.detail != move.head.detail) {
      return Error{ErrorCode::state_conflict, who + " is at a different call from " +
                                                  rank_text(links_.place_.rank) +
                                                  ": all ranks must make the same calls in the "
                                                  "same order"};
    }
    if (found.size_bytes != move.head.size_bytes) {
      return Error{ErrorCode::state_conflict,
                   who + " sends " + std::to_string(found.size_bytes) + " bytes where " +
                       std::to_string(move.head.size_bytes) + " are expected"};
    }
    return {};
  }

  // Reads the error that a rank sent before it left.
  Error farewell(std::uint32_t peer, const Head& head) const {
    std::array<char, kMaxFarewellBytes> text{};
    const std::size_t size = std::min<std::uint64_t>(head.size_bytes, text.size());
    const ssize_t got = ::recv(links_.sockets_[peer].fd(), text.data(), size, MSG_DONTWAIT);
    const std::string why(text.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
    auto code = ErrorCode::peer_lost;
    // Adopt errors that concern the whole group. Others, such as an abort, are the peer's own.
    for (ErrorCode shared : {ErrorCode::deadline_exceeded, ErrorCode::state_conflict}) {
      if (head.topic == static_cast<std::uint32_t>(shared)) code = shared;
    }
    return {code, rank_text(peer) + " gave up: " + why};
  }

  Error gone(std::uint32_t peer) const {
    return {ErrorCode::peer_lost, rank_text(peer) + " is lost: it closed the connection"};
  }

  // A connection that can no longer be written to may still hold the peer's farewell.
  Error lost(std::uint32_t peer) {
    for (Move& move : moves_) {
      if (move.flow.peer != peer || move.flow.way != Flow::Way::in || move.ended()) continue;
      const auto received = receive(move);
      return received ? gone(peer) : received.error();
    }
    Head head;
    const ssize_t got =
        ::recv(links_.sockets_[peer].fd(), &head, sizeof head, MSG_DONTWAIT | MSG_PEEK);
    if (got != sizeof head || head.magic != kFarewell) return gone(peer);
    static_cast<void>(
        ::recv(links_.sockets_[peer].fd(), &head, sizeof head, MSG_DONTWAIT | MSG_WAITALL));
    return farewell(peer, head);
  }

  Result<> wait_for_some(const LinkWait& wait) {
    polled_.clear();
    polled_.push_back({.fd = wait.stop_fd, .events = POLLIN, .revents = 0});
    for (const Move& move : moves_) {
      const bool out = move.flow.way == Flow::Way::out;
      // A forwarding flow without data waits for its source. It notices its peer's end when it next
      // sends.
      const bool idle =
          move.ended() || (out && move.head_done == sizeof move.head && may_send(move) == 0);
      polled_.push_back({.fd = idle ? -1 : links_.sockets_[move.flow.peer].fd(),
                         .events = static_cast<short>(out ? POLLOUT : POLLIN),
                         .revents = 0});
    }
    while (true) {
      const int timeout = poll_timeout_ms(wait.until);
      const int found = ::poll(polled_.data(), polled_.size(), timeout);
      if (found < 0 && errno == EINTR) continue;
      if (found < 0) return Error{ErrorCode::internal, std::string("poll: ") + strerror(errno)};
      if (polled_[0].revents != 0) return Error{ErrorCode::cancelled, "stopped"};
      if (found > 0) break;
      if (timeout == 0) return too_late();
    }
    for (std::size_t i = 0; i < moves_.size(); ++i) {
      ready_[i] = polled_[i + 1].revents != 0 || moves_[i].flow.forwards;
    }
    return {};
  }

  Error too_late() const {
    std::string who;
    for (const Move& move : moves_) {
      if (move.ended() || who.size() > kMaxFarewellBytes / 2) continue;
      if (!who.empty()) who += ", ";
      who += rank_text(move.flow.peer);
    }
    return {ErrorCode::deadline_exceeded,
            "no answer within " + std::to_string(links_.step_timeout_.count()) + " ms from " + who};
  }

  PeerLinks& links_;
  std::vector<Move> moves_;
  std::size_t incoming_ = 0;
  std::vector<bool> ready_;
  std::vector<bool> quiet_;
  std::vector<pollfd> polled_;
  PieceCursor::Batch batch_;
};

PeerLinks::PeerLinks(RankPlace place, std::vector<LinkSocket> sockets,
                     std::chrono::milliseconds step_timeout)
    : place_(place), step_timeout_(step_timeout), sockets_(std::move(sockets)) {
  CAIRN_ASSERT(sockets_.size() == place.world_size, "a rank without a connection");
  for (const LinkSocket& socket : sockets_) {
    if (socket) prepare_link(socket);
  }
}

PeerLinks::~PeerLinks() {
  if (broken_) return;
  const auto reason = aborted();
  fail(reason.value_or(Error{ErrorCode::cancelled, "the rank has left"}),
       std::vector<bool>(place_.world_size, true));
}

Result<> PeerLinks::run(Subject subject, std::span<const Flow> flows) {
  if (broken_) return *broken_;
  if (auto reason = aborted()) {
    fail(*reason, std::vector<bool>(place_.world_size, true));
    return *broken_;
  }
  Run run(*this, subject, flows);
  auto ended = run.to_the_end(
      {.until = std::chrono::steady_clock::now() + step_timeout_, .stop_fd = stop_.fd()});
  if (ended) return {};
  fail(aborted().value_or(ended.error()), run.quiet());
  return *broken_;
}

void PeerLinks::fail(const Error& why, const std::vector<bool>& quiet) {
  broken_ = why;
  Head head{.magic = kFarewell, .topic = static_cast<std::uint32_t>(why.code)};
  const std::string text = why.detail.substr(0, kMaxFarewellBytes);
  head.size_bytes = text.size();
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof head);
  bytes += text;
  for (std::size_t peer = 0; peer < sockets_.size(); ++peer) {
    if (!sockets_[peer]) continue;
    // The others see the connection close.
    if (quiet[peer]) {
      static_cast<void>(
          ::send(sockets_[peer].fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
    }
    ::shutdown(sockets_[peer].fd(), SHUT_WR);
    sockets_[peer].close();
  }
}

std::optional<Error> PeerLinks::aborted() const {
  MutexLock lock(mutex_);
  return abort_reason_;
}

void PeerLinks::abort(const Error& why) {
  {
    MutexLock lock(mutex_);
    if (!abort_reason_) abort_reason_ = why;
  }
  stop_.stop();
}

}  // namespace cairn
