#include <boost/asio/post.hpp>
#include <charconv>
#include <utility>

#include "server/http/connection.hpp"
#include "server/http/trace_context.hpp"

namespace cairn::http {
namespace {

constexpr std::uint64_t kEndless = UINT64_MAX;
constexpr std::size_t kCopiedBodyBytes = 4096;
constexpr std::string_view kLineEnd = "\r\n";
constexpr std::string_view kLastChunk = "0\r\n\r\n";

bool has_no_body(unsigned status) { return status == 204 || status == 304; }

}  // namespace

bool Connection::take_answer(std::optional<Response>&& response) {
  if (state_ != State::handler) return false;
  answer_with(response ? *std::move(response)
                       : shared_.handler.refuse(
                             500, {ErrorCode::internal, "the request was dropped unanswered"}));
  return true;
}

bool Connection::take_answer(std::optional<Memory>&& memory) {
  if (state_ != State::room && state_ != State::pieces) return false;
  memory_ = memory ? *std::move(memory)
                   : Memory(Error{ErrorCode::internal, "the request's body was dropped"});
  return true;
}

void Connection::answer_with(Response&& response) {
  response_ = std::move(response);
  state_ = State::answer;
}

bool Connection::refuse(unsigned status, ErrorCode code, std::string detail) {
  if (!request_open_) {
    request_open_ = true;
    head() = {};
    began_ = shared_.clock.now();
  }
  keep_alive_ = false;
  body_unread_ = true;
  answer_with(shared_.handler.refuse(status, {code, std::move(detail)}));
  return true;
}

bool Connection::fail_upload(const Error& why) {
  keep_alive_ = false;
  body_unread_ = true;
  answer_with(shared_.handler.failed(why));
  return true;
}

bool Connection::begin_answer() {
  if (response_.endless && head().beyond_limit) {
    return refuse(503, ErrorCode::too_many, "the server has as many connections as it may have");
  }
  answered_ = true;
  begin_body();
  if (response_.close || response_.endless || shared_.draining) keep_alive_ = false;
  chunked_ = response_.endless && !parser_->http10();
  const bool with_body = head().method != Method::head && !has_no_body(response_.status);
  head_text_.clear();
  append_response_head();
  out_.clear();
  out_.add(head_text_.data(), head_text_.size());
  head_sent_ = false;
  if (!response_.files.empty()) stream_.pass_files(std::move(response_.files));
  download_left_ = 0;
  if (with_body && response_.download != nullptr) {
    download_left_ = response_.endless ? kEndless : response_.download_bytes;
    // Send the head with the first bytes, in one write.
    if (download_left_ > 0) return ask_pieces();
  } else if (with_body) {
    add_body();
  }
  return hold();
}

// Copies a short body: one piece costs the kernel less than two.
void Connection::add_body() {
  if (response_.body.size() > kCopiedBodyBytes) {
    return out_.add(response_.body.data(), response_.body.size());
  }
  head_text_ += response_.body;
  out_.clear();
  out_.add(head_text_.data(), head_text_.size());
}

bool Connection::hold() {
  state_ = State::send;
  // Alone on its thread, there is nobody to wait for.
  if (shared_.connections.size() == 1) return true;
  if (shared_.clock.now() - began_ > HeldAnswers::kQuick) return true;
  if (shared_.held.empty()) {
    boost::asio::post(shared_.io, [&shared = shared_] { shared.held.release(); });
  }
  shared_.held.add(shared_from_this(), began_);
  state_ = State::held;
  return false;
}

void Connection::send_held() {
  if (state_ != State::held) return;
  state_ = State::send;
  run();
}

void Connection::append_response_head() {
  ResponseHead out;
  out.status = response_.status;
  out.date = shared_.date.at(shared_.clock.unix_ms());
  out.headers = response_.headers;
  out.keep_alive = keep_alive_;
  out.http10 = parser_->http10();
  const std::uint64_t body_bytes =
      response_.download != nullptr ? response_.download_bytes : response_.body.size();
  if (has_no_body(response_.status)) {
    if (response_.status == 304) out.content_length = response_.announced_bytes;
  } else if (response_.endless) {
    out.content_type = response_.content_type;
    out.chunked = chunked_;
  } else {
    out.content_type = response_.content_type;
    out.content_length =
        head().method == Method::head ? response_.announced_bytes.value_or(body_bytes) : body_bytes;
  }
  append_head(head_text_, out);
}

bool Connection::ask_pieces() {
  state_ = State::pieces;
  response_.download->next(Answer<Memory>(mailbox_));
  return true;
}

bool Connection::take_pieces() {
  if (!memory_) return false;
  Memory memory = *std::exchange(memory_, std::nullopt);
  if (memory && memory->empty() && response_.endless) return end_endless();
  if (memory && memory->empty()) memory = Error{ErrorCode::internal, "the body has no more bytes"};
  if (!memory && !head_sent_) {
    answer_with(shared_.handler.failed(memory.error()));
    return true;
  }
  if (!memory) {
    shared_.log.error("a response was cut",
                      {{"reason", memory.error().detail},
                       {"code", to_string(memory.error().code)},
                       {"bytes_missing", download_left_},
                       {"trace_id", trace_context(head().traceparent).trace_id}});
    close();
    return false;
  }
  if (head_sent_) out_.clear();
  if (chunked_) {
    add_chunk(*memory);
  } else {
    const std::uint64_t before = out_.bytes();
    out_.add_pieces(*memory, download_left_);
    if (!response_.endless) download_left_ -= out_.bytes() - before;
  }
  state_ = State::send;
  return true;
}

void Connection::add_chunk(std::span<const iovec> pieces) {
  std::uint64_t bytes = 0;
  for (const iovec& piece : pieces) bytes += piece.iov_len;
  char digits[16];
  const auto end = std::to_chars(digits, digits + sizeof digits, bytes, 16).ptr;
  chunk_head_.assign(digits, static_cast<std::size_t>(end - digits));
  chunk_head_ += kLineEnd;
  out_.add(chunk_head_.data(), chunk_head_.size());
  out_.add_pieces(pieces, bytes);
  out_.add(kLineEnd.data(), kLineEnd.size());
}

bool Connection::end_endless() {
  if (head_sent_) out_.clear();
  if (chunked_) out_.add(kLastChunk.data(), kLastChunk.size());
  download_left_ = 0;
  state_ = State::send;
  return true;
}

bool Connection::send() {
  while (!out_.empty()) {
    const Stream::Moved moved = stream_.try_write(out_.window());
    switch (moved.outcome) {
      case Stream::Outcome::ended:
        close();
        return false;
      case Stream::Outcome::would_block:
        wait_writable();
        return false;
      case Stream::Outcome::moved:
        out_.advance(moved.bytes);
        if (turn_used_up(moved.bytes)) return false;
    }
  }
  return sent();
}

bool Connection::sent() {
  if (after_continue_) {
    state_ = *std::exchange(after_continue_, std::nullopt);
    return true;
  }
  head_sent_ = true;
  if (download_left_ > 0) return ask_pieces();
  end_request();
  if (keep_alive_ && body_left_ > 0) {
    state_ = State::skip;
  } else if (keep_alive_) {
    next_request();
  } else if (body_unread_ || body_left_ > 0 || !input_.empty()) {
    begin_linger();
  } else {
    close();
  }
  return true;
}

}  // namespace cairn::http
