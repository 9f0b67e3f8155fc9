#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "server/http/body_buffer.hpp"
#include "server/http/held_answers.hpp"
#include "server/http/http_server.hpp"
#include "server/http/inbox.hpp"
#include "server/http/input_buffer.hpp"
#include "server/http/iov_cursor.hpp"
#include "server/http/mailbox.hpp"
#include "server/http/message.hpp"
#include "server/http/patience.hpp"
#include "server/http/places.hpp"
#include "server/http/request_parser.hpp"
#include "server/http/response_head.hpp"
#include "server/http/stream.hpp"

namespace cairn::http {

class Connection;

// What the connections of one network thread share. Used on that thread only, but for the inbox and
// the traffic.
struct ConnectionShared {
  ConnectionShared(const HttpLimits& limits_in, Handler& handler_in, const Clock& clock_in,
                   Logger& log_in, BodyMemory& bodies_in, const PassedFileCount& files_in,
                   const TlsIdentity* tls_in)
      : limits(limits_in),
        handler(handler_in),
        clock(clock_in),
        log(log_in),
        bodies(bodies_in),
        files(files_in),
        tls(tls_in) {}

  boost::asio::io_context io{1};
  std::shared_ptr<Inbox> inbox = std::make_shared<Inbox>(io);
  const HttpLimits& limits;
  Handler& handler;
  const Clock& clock;
  Logger& log;
  BodyMemory& bodies;
  const PassedFileCount& files;
  const TlsIdentity* tls;  // null: plain
  TrafficCount traffic;
  DateLine date;
  bool draining = false;
  std::unordered_map<const Connection*, std::shared_ptr<Connection>> connections;
  HeldAnswers held;
};

// One client's connection: reads requests one after the other, has each answered by the handler and
// writes the answers in that order.
//
// A state machine driven by run(): each state's step either moves on or leaves a wait behind, for
// the socket or for an Answer. One that is given while run() is on the stack is only noted.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(ConnectionShared& shared, std::unique_ptr<Place> place);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // False where the system refuses.
  bool open(Peer peer);
  void start();
  // Ends what has waited past its deadline, and what its client no longer waits for.
  void expire(TimePoint now);
  // Another connection is to have its place; it stays where it has something to do.
  void give_way();
  void close_if_idle();
  // The answer that was held leaves now.
  void send_held();
  // Whatever is in progress is lost.
  void close() noexcept;

 private:
  friend class Mailbox;
  enum class State : std::uint8_t {
    head,           // reading a request's head, or waiting for it
    place,          // beyond the limit of connections, it may soon be within it
    collect,        // reading a body of known length into input_
    collect_large,  // and one that is too long for that into body_
    chunks,         // reading a chunked body into body_
    room,           // an Upload is to say where the body goes
    fill,           // reading the body there
    handler,        // the handler is to answer
    answer,         // it has
    pieces,         // a Download is to give bytes
    held,           // the answer waits for the end of the thread's turn
    send,           // writing
    skip,           // reading the rest of a short body that nobody wants
    linger,         // reading until the client has closed, so that it gets our last response
    closed,
  };
  using Memory = Result<std::span<const iovec>>;

  // What throws here, out of memory mostly, costs this connection: its thread serves others.
  void run();
  void begin();
  RequestHead& head() { return parser_->head(); }
  bool step();  // false where something has to be waited for

  // From one request to the next (connection.cpp).
  bool read_head();
  // No byte of a request is there.
  bool is_idle() const;
  bool wait_for_request();
  // False where the request waits for a place of its own; beyond_limit says whether it has one.
  bool find_place();
  bool begin_request();
  void next_request();
  void end_request();
  void begin_linger();
  bool linger();
  void wait_input();  // for bytes into input_
  void wait_input(std::span<std::byte> room);
  void wait_readable();
  void wait_writable();
  void on_input(const boost::system::error_code& error, std::size_t bytes);
  void set_deadline(std::uint32_t timeout_ms);
  bool has_lost_client() const;
  // From here on the client has to keep the least rate.
  void begin_body();
  void wait_for_body();
  // True where other connections are to have their turn; run() goes on after them.
  bool turn_used_up(std::size_t bytes);

  // A request's body (connection_body.cpp).
  bool begin_collect(const CollectBody& plan);
  bool begin_upload(std::unique_ptr<Upload> upload);
  bool refuse_for_memory();
  void leave_body();
  bool collect();
  bool collect_large();
  bool read_chunks();
  bool ask_room();
  bool take_room();
  bool fill();
  bool skip_body();
  bool handle_collected();
  bool handle(std::span<const std::byte> body);
  bool say_continue();
  std::span<const std::byte> take_arrived_body();

  // Its response (connection_response.cpp).
  bool begin_answer();
  void add_body();
  bool hold();
  bool ask_pieces();
  bool take_pieces();
  bool send();
  bool sent();
  void append_response_head();
  void add_chunk(std::span<const iovec> pieces);
  bool end_endless();
  void answer_with(Response&& response);
  // The machinery's own answer; the connection is closed after it.
  bool refuse(unsigned status, ErrorCode code, std::string detail);
  bool fail_upload(const Error& why);
  // What an Answer brings. Only one is ever waited for, and only close() stops waiting for it: then
  // it is void, and false.
  bool take_answer(std::optional<Response>&& response);
  bool take_answer(std::optional<Memory>&& memory);

  ConnectionShared& shared_;
  const std::unique_ptr<Place> place_;
  const std::shared_ptr<Mailbox> mailbox_;
  const std::unique_ptr<Session> session_;
  Stream stream_;
  InputBuffer input_;
  State state_ = State::head;
  bool running_ = false;
  bool asked_ = false;    // for something: not its first request any more
  bool expired_ = false;  // the deadline has passed: what was waited for was cancelled
  std::optional<TimePoint> deadline_;
  Patience patience_;
  TimePoint idle_since_;
  std::uint64_t moved_this_turn_ = 0;  // bytes

  // The request in progress.
  std::optional<RequestParser> parser_;
  std::optional<TimePoint> head_deadline_;
  std::optional<TimePoint> place_deadline_;
  bool request_open_ = false;  // Session::finished is owed
  TimePoint began_;
  bool keep_alive_ = true;
  bool continue_due_ = false;    // the client waits for a 100 before it sends the body
  bool body_unread_ = false;     // the client may be sending what nobody will read
  std::uint64_t body_left_ = 0;  // of a body of known length: not yet taken from input_ or socket
  const std::byte* body_start_ = nullptr;  // in input_
  std::uint64_t collect_limit_bytes_ = 0;
  BodyBuffer body_;
  std::unique_ptr<Upload> upload_;
  std::optional<Memory> memory_;  // the answer of an Upload or a Download
  IovCursor room_;

  // Its response.
  bool answered_ = false;
  Response response_;
  std::uint64_t download_left_ = 0;  // bytes not yet given
  bool head_sent_ = false;
  bool chunked_ = false;  // each write is a chunk
  std::string chunk_head_;
  std::string head_text_;
  IovCursor out_;
  std::optional<State> after_continue_;
  std::uint64_t lingered_bytes_ = 0;
};

}  // namespace cairn::http
