#include "server/http/connection.hpp"

#include <algorithm>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <exception>
#include <string>
#include <utility>

#include "base/assert.hpp"
#include "base/thread.hpp"
#include "server/http/trace_context.hpp"

namespace cairn::http {
namespace {

// Read beyond the longest head, so that a typical body and pipelined requests arrive with it.
constexpr std::size_t kReadAheadBytes = 16 * 1024;
// First read of a request: a head with a typical body, such as a match of 64 keys of 32 bytes in
// JSON. More of a large body would only be copied again.
constexpr std::size_t kFirstReadBytes = 8 * 1024;
// If we close while a client still sends, its kernel discards our response. So we give it this long
// to read the response, and let it send this much.
constexpr std::uint32_t kLingerMs = 2'000;
constexpr std::uint64_t kLingerBytes = 256 * 1024 * 1024;
// 0.2 ms of copying: how long one connection may keep the thread from the others.
constexpr std::uint64_t kTurnBytes = 2 * 1024 * 1024;

}  // namespace

Connection::Connection(ConnectionShared& shared, std::unique_ptr<Place> place)
    : shared_(shared),
      place_(std::move(place)),
      mailbox_(std::make_shared<Mailbox>(shared.inbox, *this)),
      session_(shared.handler.open()),
      stream_(shared.io, shared.traffic, shared.files),
      input_(shared.limits.max_header_bytes + kReadAheadBytes),
      body_(shared.bodies) {}

Connection::~Connection() { mailbox_->close(); }

bool Connection::open(Peer peer) { return stream_.open(std::move(peer), shared_.tls); }

void Connection::start() {
  if (!guarded("connection", [this] { begin(); })) return close();
  run();
}

void Connection::begin() {
  idle_since_ = shared_.clock.now();
  next_request();
  if (!place_->attach(mailbox_)) yield();
}

void Connection::run() {
  running_ = true;
  const bool done = guarded("connection", [this] {
    while (step()) {
    }
  });
  if (!done) close();
  running_ = false;
}

bool Connection::step() {
  switch (state_) {
    case State::head:
      return read_head();
    case State::place:
      return begin_request();
    case State::collect:
      return collect();
    case State::collect_large:
      return collect_large();
    case State::chunks:
      return read_chunks();
    case State::room:
      return take_room();
    case State::fill:
      return fill();
    case State::handler:
      return false;
    case State::answer:
      return begin_answer();
    case State::pieces:
      return take_pieces();
    case State::held:
      return false;
    case State::send:
      return send();
    case State::skip:
      return skip_body();
    case State::linger:
      return linger();
    case State::closed:
      return false;
  }
  invariant_broken("state is an enumerator", "a connection would hang");
}

bool Connection::is_idle() const {
  return state_ == State::head && input_.empty() && !parser_->begun();
}

bool Connection::wait_for_request() {
  if (shared_.draining) {
    close();
    return false;
  }
  const std::span<std::byte> room = input_.room();
  wait_input(room.first(std::min(room.size(), kFirstReadBytes)));
  if (!stream_.in_handshake() && session_->stays_open()) {
    deadline_.reset();
    return false;
  }
  place_->waits(asked_ ? WaitsFor::request : WaitsFor::first_request, idle_since_);
  // A handshake has the same timeout as a head.
  deadline_ = idle_since_ + std::chrono::milliseconds(stream_.in_handshake()
                                                          ? shared_.limits.header_timeout_ms
                                                          : shared_.limits.idle_timeout_ms);
  return false;
}

bool Connection::read_head() {
  if (is_idle()) return wait_for_request();
  switch (parser_->read_head(input_)) {
    case ParseState::done:
      return begin_request();
    case ParseState::need_more:
      if (is_idle()) return wait_for_request();  // only an empty line arrived
      if (!head_deadline_) {
        const TimePoint now = shared_.clock.now();
        head_deadline_ = now + std::chrono::milliseconds(shared_.limits.header_timeout_ms);
        place_->waits(WaitsFor::request, now);
      }
      wait_input();
      deadline_ = head_deadline_;
      return false;
    case ParseState::header_too_large:
      return refuse(431, ErrorCode::out_of_range,
                    "the request's head is longer than " +
                        std::to_string(shared_.limits.max_header_bytes) + " bytes");
    case ParseState::bad_version:
      return refuse(505, ErrorCode::malformed, "the protocol is not HTTP/1.1 or HTTP/1.0");
    case ParseState::no_host:
      return refuse(400, ErrorCode::malformed, "an HTTP/1.1 request has one Host field");
    case ParseState::unknown_coding:
      return refuse(501, ErrorCode::not_implemented, "the only Transfer-Encoding here is chunked");
    case ParseState::unknown_expectation:
      return refuse(417, ErrorCode::not_implemented, "the only Expect here is 100-continue");
    case ParseState::body_too_large:
    case ParseState::out_of_memory:
    case ParseState::malformed:
      break;
  }
  return refuse(400, ErrorCode::malformed, "the request's head is not valid HTTP");
}

bool Connection::find_place() {
  if (!place_->is_beyond_limit()) return true;
  head().beyond_limit = true;
  if (session_->answers_always(head())) return true;
  const TimePoint now = shared_.clock.now();
  if (!place_deadline_) place_deadline_ = now + Places::kMostWait;
  switch (place_->move_within_limit(now)) {
    case Place::Moved::yes:
      head().beyond_limit = false;
      return true;
    case Place::Moved::soon:
      return now >= *place_deadline_;
    case Place::Moved::no:
      return true;
  }
  invariant_broken("what became of it is an enumerator", "a connection would hang");
}

bool Connection::begin_request() {
  place_->works();
  asked_ = true;
  if (!find_place()) {
    state_ = State::place;
    return false;
  }
  began_ = shared_.clock.now();
  if (shared_.held.is_due(began_)) shared_.held.release();
  request_open_ = true;
  head().ends = &stream_.ends();
  head().passes_files = stream_.passes_files();
  keep_alive_ = parser_->keep_alive() && !head().beyond_limit;
  body_left_ = head().content_length.value_or(0);
  body_start_ = input_.data().data();
  const bool has_body = head().chunked || body_left_ > 0;
  continue_due_ = has_body && input_.empty() && parser_->expects_continue();

  begin_body();
  BodyPlan plan;
  try {
    plan = session_->begin(head());
  } catch (const std::exception& thrown) {
    // An exception fails one request only: this thread serves many connections.
    shared_.log.error(
        "a request failed at its head",
        {{"why", thrown.what()}, {"trace_id", trace_context(head().traceparent).trace_id}});
    return refuse(500, ErrorCode::internal, "the request failed");
  }
  const auto* const collect = std::get_if<CollectBody>(&plan);
  if (collect == nullptr || !collect->takes_files) stream_.close_files();
  if (auto* response = std::get_if<Response>(&plan)) {
    if (head().beyond_limit && response->status == 503) place_->count_refused();
    leave_body();
    answer_with(std::move(*response));
    return true;
  }
  if (auto* upload = std::get_if<std::unique_ptr<Upload>>(&plan)) {
    return begin_upload(std::move(*upload));
  }
  return begin_collect(*collect);
}

void Connection::next_request() {
  input_.compact();
  body_.clear();
  stream_.take_files();
  parser_.emplace(shared_.limits.max_header_bytes);
  head_deadline_.reset();
  keep_alive_ = true;
  continue_due_ = false;
  state_ = State::head;
}

void Connection::end_request() {
  const unsigned status = answered_ ? response_.status : kStatusLost;
  upload_.reset();
  response_ = Response{};
  answered_ = false;
  request_open_ = false;
  // Files left over from this request must not reach the next one.
  stream_.close_files();
  static_cast<void>(stream_.files_refused());
  idle_since_ = shared_.clock.now();
  const auto took = std::chrono::duration_cast<std::chrono::microseconds>(idle_since_ - began_);
  guarded("request", [&] {
    session_->finished({.head = head(),
                        .status = status,
                        .duration_us = static_cast<std::uint64_t>(took.count())});
  });
}

void Connection::begin_linger() {
  stream_.shutdown_send();
  set_deadline(kLingerMs);
  place_->waits(WaitsFor::bytes, shared_.clock.now());
  state_ = State::linger;
}

bool Connection::linger() {
  lingered_bytes_ += input_.size();
  input_.clear();
  if (lingered_bytes_ > kLingerBytes) {
    close();
    return false;
  }
  wait_input();
  return false;
}

void Connection::close_if_idle() {
  if (is_idle()) close();
}

void Connection::yield() {
  const bool works = place_->is_beyond_limit() ? state_ == State::handler : state_ != State::head;
  const bool is_asked = state_ == State::head && stream_.has_input();
  if (works || is_asked || session_->stays_open()) return place_->stay();
  if (place_->is_beyond_limit()) place_->count_refused();
  close();
}

void Connection::close() noexcept {
  if (state_ == State::closed) return;
  state_ = State::closed;
  deadline_.reset();
  stream_.close();
  if (request_open_) end_request();
  shared_.connections.erase(this);
}

void Connection::expire(TimePoint now) {
  if (mailbox_->has_lost_one() || has_lost_client()) return close();
  if (state_ == State::place) {
    // Posted, because run() may send held answers, which may close other connections.
    return boost::asio::post(shared_.io, [self = shared_from_this()] {
      if (self->state_ == State::place) self->run();
    });
  }
  if (!deadline_ || now < *deadline_) return;
  deadline_.reset();
  const bool idle = state_ == State::head && !parser_->begun();
  if (idle || state_ == State::send || state_ == State::skip || state_ == State::linger) {
    close();
    return;
  }
  // on_input() answers with 408, unless data has arrived just now.
  expired_ = true;
  stream_.cancel();
}

// Asks the kernel, because nothing reads the socket while a request is handled.
bool Connection::has_lost_client() const {
  switch (state_) {
    case State::place:
    case State::handler:
    case State::room:
    case State::pieces:
      break;
    case State::send:
      if (response_.endless) break;
      return false;
    default:
      return false;
  }
  switch (stream_.end_of_client()) {
    case Stream::End::none:
      return false;
    case Stream::End::sends_no_more:
      // Over TCP, a killed client looks like one that has only stopped sending. The latter usually
      // says `Connection: close`.
      return response_.endless ||
             (state_ == State::handler && !stream_.passes_files() && parser_->keep_alive());
    case Stream::End::gone:
      return true;
  }
  invariant_broken("end is an enumerator", "a lost client would keep what it holds");
}

void Connection::wait_input() { wait_input(input_.room()); }

void Connection::wait_input(std::span<std::byte> room) {
  stream_.async_read(room, [self = shared_from_this()](const auto& error, std::size_t bytes) {
    self->on_input(error, bytes);
  });
}

void Connection::wait_readable() {
  wait_for_body();
  stream_.async_readable(
      [self = shared_from_this()](const auto& error) { self->on_input(error, 0); });
}

void Connection::wait_writable() {
  wait_for_body();
  stream_.async_writable([self = shared_from_this()](const auto& error) {
    if (self->state_ == State::closed) return;
    self->deadline_.reset();
    self->rate_timeout_.waited(self->shared_.clock.now());
    if (error) return self->close();
    self->run();
  });
}

void Connection::on_input(const boost::system::error_code& error, std::size_t bytes) {
  if (state_ == State::closed) return;
  if (state_ != State::linger) deadline_.reset();
  if (state_ != State::head) {
    rate_timeout_.waited(shared_.clock.now());
    rate_timeout_.moved(bytes);
  }
  moved_this_turn_ = 0;
  const bool expired = std::exchange(expired_, false);
  if (expired && error == boost::asio::error::operation_aborted) {
    const bool refused = guarded("connection", [this] {
      refuse(408, ErrorCode::deadline_exceeded, "the request did not arrive in time");
    });
    if (!refused) return close();
  } else if (error) {
    return close();  // the client is gone, or stopped sending too early
  } else if (state_ == State::collect_large) {
    body_.commit(bytes);
    body_left_ -= bytes;
  } else {
    input_.commit(bytes);
  }
  run();
}

void Connection::begin_body() {
  rate_timeout_.begin({.grace_ms = shared_.limits.body_timeout_ms,
                       .least_rate_bytes_per_s = shared_.limits.least_rate_bytes_per_s});
}

void Connection::wait_for_body() {
  const TimePoint now = shared_.clock.now();
  place_->waits(WaitsFor::bytes, now);
  deadline_ = rate_timeout_.wait(now);
}

void Connection::set_deadline(std::uint32_t timeout_ms) {
  deadline_ = shared_.clock.now() + std::chrono::milliseconds(timeout_ms);
}

bool Connection::turn_used_up(std::size_t bytes) {
  rate_timeout_.moved(bytes);
  moved_this_turn_ += bytes;
  if (moved_this_turn_ < kTurnBytes) return false;
  moved_this_turn_ = 0;
  boost::asio::post(shared_.io, [self = shared_from_this()] { self->run(); });
  return true;
}

}  // namespace cairn::http
