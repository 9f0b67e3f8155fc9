#include "server/events/zmtp_server.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <charconv>
#include <chrono>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "server/events/zmtp_wire.hpp"
#include "server/http/listener.hpp"
#include "server/http/rate_timeout.hpp"

namespace cairn {
namespace {

namespace asio = boost::asio;

// From connect to the end of the handshake.
constexpr std::chrono::seconds kHandshake{10};
// Drops a client that takes nothing for this long, or is slower than this rate on average.
constexpr http::RateTimeout::Limits kRateTimeout{.grace_ms = 30'000,
                                                 .least_rate_bytes_per_s = 64 * 1024};
// A router subscribes to a cache or to those of a model, with one topic each.
constexpr std::size_t kMaxSubscriptions = 64;
// Maximum per read; an incomplete frame is kept.
constexpr std::size_t kReadBytes = 2 * zmtp::kMaxFrameBytes;
// Maximum sent to one client before others get their turn.
constexpr std::size_t kTurnBytes = 1 << 20;
// Idle time before, and interval between, the kernel's keep-alive probes.
constexpr int kKeepAliveS = 60;

struct BoundPlace {
  http::ListeningSocket socket;
  std::optional<http::UnixSocketFile> file;  // ipc
  std::string endpoint;
  bool is_open_to_network = false;
};

Error bad_endpoint(const std::string& endpoint, std::string_view why,
                   ErrorCode code = ErrorCode::malformed) {
  return {code, "cannot publish events on '" + endpoint + "': " + std::string(why)};
}

Result<BoundPlace> listen_ipc(const std::string& endpoint, const std::string& path) {
  if (path.empty() || path.front() == '@' || path == "*") {
    return bad_endpoint(endpoint, "ipc:// takes the path of a file");
  }
  auto file = http::UnixSocketFile::listen(path, {});
  if (!file) return bad_endpoint(endpoint, file.error().detail, file.error().code);
  BoundPlace place{.socket = file->take_socket(), .file = {}, .endpoint = endpoint};
  place.file.emplace(std::move(*file));
  return place;
}

Result<BoundPlace> listen_tcp(const std::string& endpoint, std::string_view address) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string_view::npos) return bad_endpoint(endpoint, "it has no port");
  std::string host(address.substr(0, colon));
  const std::string_view digits = address.substr(colon + 1);
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (digits != "*" && (error != std::errc() || end != digits.data() + digits.size())) {
    return bad_endpoint(endpoint, "its port is not a number from 0 to 65535");
  }
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  if (host.empty()) host = "127.0.0.1";
  if (host == "*") host = "0.0.0.0";
  auto socket = http::listen_tcp(host, port);
  if (!socket) return bad_endpoint(endpoint, socket.error().detail, socket.error().code);
  asio::ip::tcp::endpoint bound;
  auto size = static_cast<socklen_t>(bound.capacity());
  if (::getsockname(socket->fd.get(), bound.data(), &size) != 0) {
    return bad_endpoint(endpoint, "its address is not known");
  }
  const std::string text = bound.address().to_string();
  return BoundPlace{.socket = std::move(*socket),
                    .file = {},
                    .endpoint = "tcp://" + (bound.address().is_v6() ? "[" + text + "]" : text) +
                                ":" + std::to_string(bound.port()),
                    .is_open_to_network = !bound.address().is_loopback()};
}

Result<BoundPlace> listen(const std::string& endpoint) {
  constexpr std::string_view kTcp = "tcp://";
  constexpr std::string_view kIpc = "ipc://";
  if (endpoint.starts_with(kTcp)) {
    return listen_tcp(endpoint, std::string_view(endpoint).substr(kTcp.size()));
  }
  if (endpoint.starts_with(kIpc)) return listen_ipc(endpoint, endpoint.substr(kIpc.size()));
  return bad_endpoint(endpoint, "it must begin with tcp:// or ipc://");
}

void prepare_tcp(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &kKeepAliveS, sizeof kKeepAliveS);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &kKeepAliveS, sizeof kKeepAliveS);
}

}  // namespace

// One connection. Pending operations hold a reference to it.
class ZmtpClient : public std::enable_shared_from_this<ZmtpClient> {
 public:
  using Kind = ZmtpServer::Kind;
  ZmtpClient(const ZmtpServer::Parts& parts, const ZmtpServer::Options& options)
      : parts_(parts),
        kind_(options.kind),
        most_behind_(options.most_behind),
        socket_(parts.io),
        ready_by_(parts.clock.now() + kHandshake),
        last_heard_(parts.clock.now()) {
    rate_timeout_.begin(kRateTimeout);
  }

  // Returns false if the system refuses.
  bool open(http::Peer peer) {
    const bool is_tcp = peer.family != AF_UNIX;
    if (is_tcp) prepare_tcp(peer.fd.get());
    boost::system::error_code error;
    socket_.assign({peer.family, is_tcp ? IPPROTO_TCP : 0}, peer.fd.get(), error);
    if (error) return false;
    peer.fd.release();
    socket_.non_blocking(true, error);
    return !error;
  }
  void start() {
    control_ = zmtp::greeting();
    go_on();
  }
  bool ended() const { return stage_ == Stage::ended; }
  // True if only the connection would be lost.
  bool is_idle() const { return subscriptions_.empty() && !replay_ && !is_writing_; }
  bool is_open() const { return stage_ == Stage::open; }
  TimePoint last_heard() const { return last_heard_; }

  void tick() {
    const TimePoint now = parts_.clock.now();
    const bool is_late = !is_open() && now >= ready_by_;
    if (is_late || (gives_up_at_ && now >= *gives_up_at_)) return end();
    if (is_open()) go_on();
  }
  void end() {
    if (std::exchange(stage_, Stage::ended) == Stage::ended) return;
    boost::system::error_code ignored;
    socket_.close(ignored);
  }

 private:
  enum class Stage : std::uint8_t { greeting, handshake, open, ended };
  struct Replay {
    std::uint64_t next = 0;  // number
    std::uint64_t end = 0;   // one past the last
  };

  // Handles input, writes output, and waits for more of both.
  void go_on() {
    while (!ended() && !waits_to_write_) {
      const bool any = is_writing_ ? write() : take_in() || next_message();
      if (!any) break;
    }
    read();
  }

  // While something must be sent first, the kernel keeps the client's input.
  bool is_busy() const { return replay_.has_value() || !control_.empty() || is_writing_control_; }

  void read() {
    if (ended() || reading_ || is_busy()) return;
    reading_ = true;
    socket_.async_read_some(asio::buffer(room_),
                            [self = shared_from_this()](const auto& error, std::size_t bytes) {
                              self->reading_ = false;
                              if (error) return self->end();
                              self->last_heard_ = self->parts_.clock.now();
                              self->input_.append(self->room_.data(), bytes);
                              self->go_on();
                            });
  }

  // Returns true if it handled some input.
  bool take_in() {
    if (is_busy()) return false;
    if (stage_ == Stage::greeting) {
      if (input_.size() < zmtp::kGreetingBytes) return false;
      if (!zmtp::is_greeting(input_)) return refuse();
      input_.erase(0, zmtp::kGreetingBytes);
      control_ = zmtp::ready(kind_ == Kind::publish ? "PUB" : "ROUTER");
      stage_ = Stage::handshake;
      return true;
    }
    zmtp::Frame frame;
    switch (zmtp::next_frame(input_, frame)) {
      case zmtp::Parsed::whole:
        break;
      case zmtp::Parsed::part:
        return false;
      case zmtp::Parsed::too_long:
        return refuse();
    }
    const std::size_t taken = frame.taken_bytes;
    const bool is_fine = frame.is_command ? take_command(frame.body) : take_message(frame);
    if (!is_fine) return refuse();
    input_.erase(0, taken);
    return true;
  }
  bool refuse() {
    end();
    return false;
  }

  bool take_command(std::string_view body) {
    if (parts_so_far_ > 0) return false;  // in the middle of a message
    const auto command = zmtp::command_of(body);
    if (!command) return false;
    const auto& [name, data] = *command;
    if (stage_ == Stage::handshake) {
      if (name != "READY" || !is_expected(zmtp::socket_type_of(data))) return false;
      stage_ = Stage::open;
      return true;
    }
    if (name == "PING") {
      const auto pong = zmtp::pong(data);
      if (!pong) return false;
      control_ = *pong;
      return true;
    }
    if (name == "SUBSCRIBE") return subscribe(data);
    if (name == "CANCEL") return cancel(data);
    return name != "ERROR";
  }
  bool is_expected(std::string_view type) const {
    if (kind_ == Kind::publish) return type == "SUB" || type == "XSUB";
    return type == "REQ" || type == "DEALER" || type == "ROUTER";
  }

  bool take_message(const zmtp::Frame& frame) {
    if (stage_ != Stage::open) return false;
    if (kind_ == Kind::publish) {
      if (frame.has_more || frame.body.empty()) return false;
      const std::string_view topic = frame.body.substr(1);
      return frame.body.front() == '\1'   ? subscribe(topic)
             : frame.body.front() == '\0' ? cancel(topic)
                                          : false;
    }
    // A request is an empty part and a number.
    if (++parts_so_far_ == 1) return frame.has_more && frame.body.empty();
    parts_so_far_ = 0;
    const auto number = zmtp::number_of(frame.body);
    if (frame.has_more || !number) return false;
    replay_ =
        Replay{.next = parts_.history.replay_from(*number), .end = parts_.history.next_number()};
    return true;
  }

  bool subscribe(std::string_view topic) {
    if (kind_ != Kind::publish) return false;
    if (std::ranges::find(subscriptions_, topic) != subscriptions_.end()) return true;
    if (subscriptions_.size() == kMaxSubscriptions) return false;
    if (subscriptions_.empty()) next_ = parts_.history.next_number();
    subscriptions_.emplace_back(topic);
    return true;
  }
  bool cancel(std::string_view topic) {
    if (kind_ != Kind::publish) return false;
    std::erase(subscriptions_, topic);
    return true;
  }

  // Returns true if there is something to write.
  bool next_message() {
    if (!control_.empty()) {
      is_writing_control_ = true;
      return begin(std::exchange(control_, {}), nullptr);
    }
    if (replay_) return next_of_replay();
    if (subscriptions_.empty()) return false;
    const BatchHistory& history = parts_.history;
    if (history.next_number() > most_behind_) {
      next_ = std::max(next_, history.next_number() - most_behind_);
    }
    while (auto batch = history.from(next_)) {
      next_ = batch->number + 1;
      const bool is_wanted = std::ranges::any_of(
          subscriptions_, [&](const auto& prefix) { return batch->topic.starts_with(prefix); });
      if (!is_wanted) continue;
      std::string head = zmtp::frame(batch->topic, true) + zmtp::number_frame(batch->number) +
                         zmtp::frame_head(batch->payload.size(), false);
      return begin(std::move(head), std::move(batch));
    }
    return false;
  }

  bool next_of_replay() {
    // The client was too slow: it must not take the rest for everything.
    if (!parts_.history.holds_all_from(replay_->next)) return refuse();
    auto batch = parts_.history.from(replay_->next);
    std::string head = zmtp::frame("", true);
    if (batch == nullptr || batch->number >= replay_->end) {
      replay_.reset();
      head += zmtp::number_frame(~std::uint64_t{0}) + zmtp::frame("", false);
      return begin(std::move(head), nullptr);
    }
    replay_->next = batch->number + 1;
    head += zmtp::number_frame(batch->number) + zmtp::frame_head(batch->payload.size(), false);
    return begin(std::move(head), std::move(batch));
  }

  bool begin(std::string head, std::shared_ptr<const EventBatch> batch) {
    head_ = std::move(head);
    batch_ = std::move(batch);
    written_bytes_ = 0;
    is_writing_ = true;
    return true;
  }

  // Returns true once the message is written.
  bool write() {
    const std::string_view payload = batch_ ? std::string_view(batch_->payload) : "";
    while (written_bytes_ < head_.size() + payload.size()) {
      if (turn_bytes_ >= kTurnBytes) {
        turn_bytes_ = 0;
        waits_to_write_ = true;
        asio::post(parts_.io, [self = shared_from_this()] { self->may_write({}); });
        return false;
      }
      const std::array<asio::const_buffer, 2> left = {
          asio::buffer(head_) + written_bytes_,
          asio::buffer(payload) + (std::max(written_bytes_, head_.size()) - head_.size())};
      boost::system::error_code error;
      const std::size_t bytes = socket_.write_some(left, error);
      if (error == asio::error::would_block) {
        waits_to_write_ = true;
        gives_up_at_ = rate_timeout_.wait(parts_.clock.now());
        socket_.async_wait(Socket::wait_write, [self = shared_from_this()](const auto& failed) {
          self->rate_timeout_.waited(self->parts_.clock.now());
          self->may_write(failed);
        });
        return false;
      }
      if (error) return refuse();
      rate_timeout_.moved(bytes);
      written_bytes_ += bytes;
      turn_bytes_ += bytes;
    }
    batch_.reset();
    is_writing_ = is_writing_control_ = false;
    return true;
  }
  void may_write(const boost::system::error_code& error) {
    waits_to_write_ = false;
    gives_up_at_.reset();
    if (error) return end();
    go_on();
  }

  using Socket =
      asio::basic_stream_socket<asio::generic::stream_protocol, asio::io_context::executor_type>;

  const ZmtpServer::Parts parts_;
  const Kind kind_;
  const std::uint64_t most_behind_;
  Socket socket_;
  Stage stage_ = Stage::greeting;
  const TimePoint ready_by_;
  TimePoint last_heard_;
  http::RateTimeout rate_timeout_;
  std::optional<TimePoint> gives_up_at_;

  std::array<char, kReadBytes> room_;
  bool reading_ = false;
  std::string input_;                       // an incomplete frame, plus one read
  std::size_t parts_so_far_ = 0;            // replay: parts of the current message
  std::vector<std::string> subscriptions_;  // publish
  std::uint64_t next_ = 0;                  // publish: the next number to send
  std::optional<Replay> replay_;            // in progress

  std::string control_;  // to send first: part of the handshake, or a PONG
  bool is_writing_ = false;
  bool is_writing_control_ = false;
  std::string head_;  // being written, followed by the batch's payload
  std::shared_ptr<const EventBatch> batch_;
  std::size_t written_bytes_ = 0;
  std::size_t turn_bytes_ = 0;
  bool waits_to_write_ = false;
};

class ZmtpServer::Impl {
 public:
  Impl(const Parts& parts, const Options& options, BoundPlace place)
      : parts_(parts),
        options_(options),
        endpoint_(std::move(place.endpoint)),
        is_open_to_network_(place.is_open_to_network),
        file_(std::move(place.file)),
        listener_(
            parts.io, std::move(place.socket), [this](http::Peer& peer) { return accept(peer); },
            parts.log) {}
  ~Impl() {
    listener_.close();
    for (const auto& client : clients_) client->end();
  }

  const std::string& endpoint() const { return endpoint_; }
  bool is_open_to_network() const { return is_open_to_network_; }

  void tick() {
    listener_.resume();
    for (const auto& client : clients_) client->tick();
    std::erase_if(clients_, [](const auto& client) { return client->ended(); });
  }

 private:
  bool accept(http::Peer& peer) {
    std::erase_if(clients_, [](const auto& client) { return client->ended(); });
    if (clients_.size() >= options_.max_clients && !make_room()) return true;
    auto client = std::make_shared<ZmtpClient>(parts_, options_);
    if (!client->open(std::move(peer))) return true;
    clients_.push_back(client);
    client->start();
    return true;
  }

  // Closes a connection to free a place: first those before the end of their handshake, then those
  // that want nothing; among equals the one silent for longest. Returns false if all are in use.
  bool make_room() {
    const auto goes_before = [](const auto& one, const auto& other) {
      if (one->is_open() != other->is_open()) return !one->is_open();
      if (one->is_idle() != other->is_idle()) return one->is_idle();
      return one->last_heard() < other->last_heard();
    };
    const auto first = std::ranges::min_element(clients_, goes_before);
    if ((*first)->is_open() && !(*first)->is_idle()) return false;
    (*first)->end();
    clients_.erase(first);
    return true;
  }

  const Parts parts_;
  const Options options_;
  const std::string endpoint_;
  const bool is_open_to_network_;
  const std::optional<http::UnixSocketFile> file_;
  std::vector<std::shared_ptr<ZmtpClient>> clients_;
  http::Listener listener_;
};

Result<std::unique_ptr<ZmtpServer>> ZmtpServer::bind(const Parts& parts, const Options& options) {
  auto place = listen(options.endpoint);
  if (!place) return std::move(place).error();
  return std::unique_ptr<ZmtpServer>(
      new ZmtpServer(std::make_unique<Impl>(parts, options, std::move(*place))));
}

ZmtpServer::ZmtpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ZmtpServer::~ZmtpServer() = default;

const std::string& ZmtpServer::endpoint() const { return impl_->endpoint(); }
bool ZmtpServer::is_open_to_network() const { return impl_->is_open_to_network(); }
void ZmtpServer::tick() { impl_->tick(); }

}  // namespace cairn
