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
#include "server/http/places.hpp"
#include "server/http/rate_timeout.hpp"
#include "server/http/request_parser.hpp"
#include "server/http/response_head.hpp"
#include "server/http/stream.hpp"

namespace cairn::http {

class Connection;

// Shared by the connections of one network thread. Used on that thread only, except inbox and
// traffic.
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
  const TlsIdentity* tls;  // null: no TLS
  TrafficCount traffic;
  DateLine date;
  bool draining = false;
  std::unordered_map<const Connection*, std::shared_ptr<Connection>> connections;
  HeldAnswers held;
};

// One client's connection. Reads requests one after another, lets the handler answer each, and
// writes the answers in order.
//
// A state machine: run() executes steps until one has to wait for the socket or for an Answer. An
// Answer that arrives during run() is only stored.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(ConnectionShared& shared, std::unique_ptr<Place> place);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Returns false if the system refuses.
  bool open(Peer peer);
  void start();
  // Ends a wait past its deadline, and closes if the client is gone.
  void expire(TimePoint now);
  // Closes to make room for another connection, unless it is busy.
  void yield();
  void close_if_idle();
  // Sends the held answer.
  void send_held();
  // Drops everything in progress.
  void close() noexcept;

 private:
  friend class Mailbox;
  enum class State : std::uint8_t {
    head,           // reading a request's head, or waiting for it
    place,          // above the connection limit; may soon get a place
    collect,        // reading a body of known length into input_
    collect_large,  // reading a longer one into body_
    chunks,         // reading a chunked body into body_
    room,           // waiting for an Upload's memory
    fill,           // reading the body into that memory
    handler,        // waiting for the handler
    answer,         // the handler has answered
    pieces,         // waiting for a Download's bytes
    held,           // the answer waits for the end of the thread's turn
    send,           // writing
    skip,           // reading the rest of a short, unwanted body
    linger,         // reading until the client closes, so that it gets our last response
    closed,
  };
  using Memory = Result<std::span<const iovec>>;

  // An exception, mostly for lack of memory, closes this connection only: the thread serves others.
  void run();
  void begin();
  RequestHead& head() { return parser_->head(); }
  bool step();  // false if it must wait

  // From one request to the next (connection.cpp).
  bool read_head();
  // True if no byte of a request has arrived.
  bool is_idle() const;
  bool wait_for_request();
  // Returns false if the request must wait for a place; beyond_limit tells whether it has one.
  bool find_place();
  bool begin_request();
  void next_request();
  void end_request();
  void begin_linger();
  bool linger();
  void wait_input();  // reads into input_
  void wait_input(std::span<std::byte> room);
  void wait_readable();
  void wait_writable();
  void on_input(const boost::system::error_code& error, std::size_t bytes);
  void set_deadline(std::uint32_t timeout_ms);
  bool has_lost_client() const;
  // From now on the client must keep the minimum rate.
  void begin_body();
  void wait_for_body();
  // Returns true if it is the other connections' turn; run() continues after them.
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

  // The response (connection_response.cpp).
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
  // Answers with an error of the HTTP machinery, then closes the connection.
  bool refuse(unsigned status, ErrorCode code, std::string detail);
  bool fail_upload(const Error& why);
  // Delivers an Answer. At most one is awaited, and only close() stops the wait: then these ignore
  // it and return false.
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
  bool asked_ = false;    // has begun a request before
  bool expired_ = false;  // the deadline has passed and the wait was cancelled
  std::optional<TimePoint> deadline_;
  RateTimeout rate_timeout_;
  TimePoint idle_since_;
  std::uint64_t moved_this_turn_ = 0;  // bytes

  // The request in progress.
  std::optional<RequestParser> parser_;
  std::optional<TimePoint> head_deadline_;
  std::optional<TimePoint> place_deadline_;
  bool request_open_ = false;  // Session::finished() is due
  TimePoint began_;
  bool keep_alive_ = true;
  bool continue_due_ = false;    // the client waits for a 100 before it sends the body
  bool body_unread_ = false;     // the client may still send a body that nobody reads
  std::uint64_t body_left_ = 0;  // known length only: bytes not taken from input_ or socket
  const std::byte* body_start_ = nullptr;  // in input_
  std::uint64_t collect_limit_bytes_ = 0;
  BodyBuffer body_;
  std::unique_ptr<Upload> upload_;
  std::optional<Memory> memory_;  // the answer of an Upload or a Download
  IovCursor room_;

  // Its response.
  bool answered_ = false;
  Response response_;
  std::uint64_t download_left_ = 0;  // bytes that the Download still owes
  bool head_sent_ = false;
  bool chunked_ = false;  // each write is a chunk
  std::string chunk_head_;
  std::string head_text_;
  IovCursor out_;
  std::optional<State> after_continue_;
  std::uint64_t lingered_bytes_ = 0;
};

}  // namespace cairn::http
