#include <algorithm>
#include <utility>

#include "server/http/connection.hpp"

namespace cairn::http {
namespace {

// Up to this length, the rest of an unwanted body is read and discarded: cheaper for both sides
// than a new connection.
constexpr std::uint64_t kSkipBytes = 64 * 1024;

std::string over_limit(std::uint64_t limit_bytes) {
  return "the body is longer than the " + std::to_string(limit_bytes) + " bytes allowed here";
}

// A typical chunked body: a match of 32 keys in JSON.
constexpr std::size_t kUsualChunkedBytes = 4096 - kBodyPadding;

}  // namespace

bool Connection::begin_collect(const CollectBody& plan) {
  collect_limit_bytes_ = plan.limit_bytes;
  if (head().chunked) {
    body_.expect(kUsualChunkedBytes);
    state_ = State::chunks;
    return true;
  }
  if (body_left_ > plan.limit_bytes) {
    return refuse(413, ErrorCode::body_too_large, over_limit(plan.limit_bytes));
  }
  const bool is_large = body_left_ > input_.reach();
  if (is_large) body_.expect(static_cast<std::size_t>(body_left_));
  state_ = is_large ? State::collect_large : State::collect;
  return true;
}

bool Connection::refuse_for_memory() {
  body_.clear();
  return refuse(503, ErrorCode::unavailable, "the memory for requests' bodies is in use");
}

bool Connection::begin_upload(std::unique_ptr<Upload> upload) {
  upload_ = std::move(upload);
  if (!head().content_length) {
    return refuse(411, ErrorCode::missing_field, "this body needs a Content-Length");
  }
  return body_left_ == 0 ? fill() : ask_room();
}

// The response is sent before the body has arrived.
void Connection::leave_body() {
  take_arrived_body();
  if (head().chunked || body_left_ > kSkipBytes || continue_due_) {
    body_unread_ = true;
    keep_alive_ = false;
  }
}

// Consumes the part of the body that is in input_.
std::span<const std::byte> Connection::take_arrived_body() {
  const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(input_.size(), body_left_));
  const std::span<const std::byte> arrived = input_.data().first(bytes);
  input_.consume(bytes);
  body_left_ -= bytes;
  return arrived;
}

bool Connection::collect() {
  if (input_.size() >= body_left_) return handle(take_arrived_body());
  if (continue_due_) return say_continue();
  wait_for_body();
  wait_input();
  return false;
}

bool Connection::collect_large() {
  if (!body_.append(take_arrived_body())) return refuse_for_memory();
  if (body_left_ == 0) return handle_collected();
  if (continue_due_) return say_continue();
  wait_for_body();
  const std::span<std::byte> room = body_.room(static_cast<std::size_t>(body_left_));
  if (room.empty()) return refuse_for_memory();
  wait_input(room);
  return false;
}

bool Connection::read_chunks() {
  switch (parser_->read_chunks(input_, body_, collect_limit_bytes_)) {
    case ParseState::done:
      return handle_collected();
    case ParseState::need_more:
      if (continue_due_) return say_continue();
      input_.compact(body_start_);
      if (input_.room().empty()) break;  // one chunk's head fills the buffer
      wait_for_body();
      wait_input();
      return false;
    case ParseState::body_too_large:
      return refuse(413, ErrorCode::body_too_large, over_limit(collect_limit_bytes_));
    case ParseState::out_of_memory:
      return refuse_for_memory();
    case ParseState::header_too_large:
    case ParseState::bad_version:
    case ParseState::no_host:
    case ParseState::unknown_coding:
    case ParseState::unknown_expectation:
    case ParseState::malformed:
      break;
  }
  return refuse(400, ErrorCode::malformed, "the chunked body is not valid HTTP");
}

bool Connection::handle_collected() {
  body_.settle();
  return handle(body_.data());
}

bool Connection::handle(std::span<const std::byte> body) {
  state_ = State::handler;
  place_->works();
  session_->handle(
      {.bytes = body, .files = stream_.arrived_files(), .files_refused = stream_.files_refused()},
      Responder(mailbox_));
  return true;
}

bool Connection::ask_room() {
  state_ = State::room;
  upload_->next(Answer<Memory>(mailbox_));
  return true;
}

bool Connection::take_room() {
  if (!memory_) return false;
  const Memory memory = *std::exchange(memory_, std::nullopt);
  if (!memory) return fail_upload(memory.error());
  room_.clear();
  room_.add_pieces(*memory, body_left_);
  if (room_.empty()) return fail_upload({ErrorCode::internal, "there is no room for the body"});
  state_ = State::fill;
  return true;
}

bool Connection::fill() {
  const std::span<const std::byte> arrived = input_.data().first(
      static_cast<std::size_t>(std::min<std::uint64_t>(input_.size(), body_left_)));
  const std::size_t filled = room_.fill(arrived);
  input_.consume(filled);
  body_left_ -= filled;
  while (!room_.empty()) {
    if (continue_due_) return say_continue();
    const Stream::Moved moved = stream_.try_read(room_.window());
    switch (moved.outcome) {
      case Stream::Outcome::ended:
        close();
        return false;
      case Stream::Outcome::would_block:
        wait_readable();
        return false;
      case Stream::Outcome::moved:
        room_.advance(moved.bytes);
        body_left_ -= moved.bytes;
        if (turn_used_up(moved.bytes)) return false;
    }
  }
  if (body_left_ > 0) return ask_room();
  state_ = State::handler;
  upload_->finish(Responder(mailbox_));
  return true;
}

bool Connection::skip_body() {
  take_arrived_body();
  if (body_left_ == 0) {
    next_request();
    return true;
  }
  input_.clear();
  wait_for_body();
  wait_input();
  return false;
}

bool Connection::say_continue() {
  continue_due_ = false;
  after_continue_ = state_;
  static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  out_.clear();
  out_.add(kContinue.data(), kContinue.size());
  state_ = State::send;
  return true;
}

}  // namespace cairn::http
