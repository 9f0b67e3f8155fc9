#include "transport/store/peer_link.hpp"

#include <algorithm>
#include <boost/asio/error.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <cstring>
#include <utility>

#include "base/pieces.hpp"

namespace cairn {
namespace {

namespace asio = boost::asio;
namespace beast_http = boost::beast::http;
using boost::system::error_code;

// A response that takes this many time-outs is given up even if bytes still arrive: its memory is
// needed again.
constexpr int kMostTimeouts = 10;
// Responses with status 1xx before the final one.
constexpr int kMaxInterimHeads = 8;
// An error response has some hundred bytes. A longer one is not read to its end.
constexpr std::uint64_t kMaxSkippedBytes = 64 * 1024;

}  // namespace

PeerLink::PeerLink(Options options)
    : options_(std::move(options)),
      wire_(options_.address.unix_path.empty() ? make_wire(options_.io, options_.tls)
                                               : make_unix_wire(options_.io, options_.unix_owners)),
      silence_(options_.io),
      last_byte_(std::chrono::steady_clock::now()) {}

std::shared_ptr<PeerLink> PeerLink::open(Options options) {
  auto link = std::shared_ptr<PeerLink>(new PeerLink(std::move(options)));
  link->connect();
  return link;
}

void PeerLink::connect() {
  watch_silence();
  wire_->connect(options_.address, [self = weak_from_this(), wire = wire_](error_code failed) {
    const auto link = self.lock();
    if (!link || link->has_ended_) return;
    if (failed) return link->fail(connection_lost(link->options_.address, "connect", failed));
    link->last_byte_ = std::chrono::steady_clock::now();
    link->is_ready_ = true;
    link->read_more();
    link->send_next();
  });
}

void PeerLink::send(Request request) {
  waiting_.push_back(std::move(request));
  send_next();
}

void PeerLink::send_next() {
  if (!is_ready_ || has_ended_ || current_ || waiting_.empty()) return;
  current_.emplace(std::move(waiting_.front()));
  waiting_.pop_front();
  answer_ = {};
  interim_heads_ = 0;
  last_byte_ = current_since_ = std::chrono::steady_clock::now();
  writing_ = {asio::buffer(current_->text)};
  is_writing_ = true;
  write_rest();
}

void PeerLink::write_rest() {
  wire_->write_some(
      writing_, [self = weak_from_this(), wire = wire_](error_code failed, std::size_t bytes) {
        const auto link = self.lock();
        if (!link || link->has_ended_) return;
        if (failed)
          return link->end({connection_lost(link->options_.address, "send", failed)}, true);
        drop_front(link->writing_, bytes);
        if (!link->writing_.empty()) return link->write_rest();
        link->is_writing_ = false;
        if (std::exchange(link->has_answer_, false)) link->end_current();
      });
}

void PeerLink::read_more() {
  if (end_ == buffer_.size()) {
    return fail({ErrorCode::unavailable, options_.address.text() + " sent a head without an end"});
  }
  wire_->read_some({asio::buffer(buffer_.data() + end_, buffer_.size() - end_)},
                   [self = weak_from_this(), wire = wire_](error_code failed, std::size_t bytes) {
                     const auto link = self.lock();
                     if (!link || link->has_ended_) return;
                     if (!failed) return link->took(bytes);
                     const bool is_idle = !link->current_ && link->waiting_.empty();
                     if (is_idle) return link->end({}, false);
                     link->end({connection_lost(link->options_.address, "receive", failed)},
                               link->end_ == 0);
                   });
}

void PeerLink::took(std::size_t bytes) {
  last_byte_ = std::chrono::steady_clock::now();
  end_ += bytes;
  if (!current_) {
    return fail(
        {ErrorCode::unavailable, options_.address.text() + " sent a response to no request"});
  }
  if (skip_bytes_ > 0) return read_body();
  take_head();
}

void PeerLink::take_head() {
  beast_http::response_parser<beast_http::empty_body> parser;
  parser.header_limit(static_cast<std::uint32_t>(buffer_.size()));
  parser.body_limit(boost::none);
  parser.skip(true);  // read_body() reads the body into its memory
  error_code failed;
  const std::size_t head_bytes = parser.put(asio::const_buffer(buffer_.data(), end_), failed);
  if (failed == beast_http::error::need_more) return read_more();
  if (failed || !parser.is_header_done()) {
    return fail({ErrorCode::unavailable,
                 options_.address.text() + " does not speak HTTP: " + failed.message()});
  }
  end_ -= head_bytes;
  std::memmove(buffer_.data(), buffer_.data() + head_bytes, end_);
  if (parser.get().result_int() / 100 == 1) {
    if (++interim_heads_ > kMaxInterimHeads) {
      return fail(
          {ErrorCode::unavailable, options_.address.text() + " sent too many interim responses"});
    }
    return end_ > 0 ? take_head() : read_more();
  }

  answer_.status = parser.get().result_int();
  keeps_alive_ = parser.get().keep_alive();
  const auto length = parser.content_length();
  if (!length) {
    return fail(
        {ErrorCode::unavailable, options_.address.text() + " sent a response without its length"});
  }
  if (answer_.status == 200 && *length <= total_bytes(current_->into) &&
      *length % current_->part_bytes == 0) {
    answer_.parts = static_cast<std::size_t>(*length / current_->part_bytes);
  }
  body_rest_.clear();
  if (answer_.parts) {
    std::uint64_t left = *length;
    for (const iovec& piece : current_->into) {
      const auto some = static_cast<std::size_t>(std::min<std::uint64_t>(left, piece.iov_len));
      if (some == 0) break;
      body_rest_.emplace_back(piece.iov_base, some);
      left -= some;
    }
    const std::size_t here =
        asio::buffer_copy(body_rest_, asio::const_buffer(buffer_.data(), end_));
    drop_front(body_rest_, here);
    end_ -= here;
    std::memmove(buffer_.data(), buffer_.data() + here, end_);
  } else {
    skip_bytes_ = *length;
    if (*length > kMaxSkippedBytes) {
      skip_bytes_ = 0;
      keeps_alive_ = false;
    }
  }
  read_body();
}

void PeerLink::read_body() {
  if (skip_bytes_ > 0) {
    const auto some = static_cast<std::size_t>(std::min<std::uint64_t>(skip_bytes_, end_));
    skip_bytes_ -= some;
    end_ -= some;
    std::memmove(buffer_.data(), buffer_.data() + some, end_);
    if (skip_bytes_ > 0) return read_more();
  }
  wire_->expect(asio::buffer_size(body_rest_));
  if (!body_rest_.empty()) {
    return wire_->read_some(
        body_rest_, [self = weak_from_this(), wire = wire_](error_code failed, std::size_t bytes) {
          const auto link = self.lock();
          if (!link || link->has_ended_) return;
          if (failed) return link->fail(connection_lost(link->options_.address, "receive", failed));
          link->last_byte_ = std::chrono::steady_clock::now();
          drop_front(link->body_rest_, bytes);
          link->read_body();
        });
  }
  // The response may arrive before the end of the write is reported.
  if (is_writing_) {
    has_answer_ = true;
    return;
  }
  end_current();
}

void PeerLink::end_current() {
  const auto keep = shared_from_this();
  ++answers_;
  Request done = std::move(*current_);
  current_.reset();
  // Extra bytes would be taken for the next response.
  const bool goes_on = keeps_alive_ && end_ == 0;
  const Answer answer = answer_;
  if (goes_on) {
    // The server processes the next request while the caller handles this response.
    read_more();
    send_next();
  }
  done.done(answer);
  if (!goes_on && !has_ended_) end({}, true);
}

void PeerLink::watch_silence() {
  const auto most = options_.timeout;
  silence_.expires_after(std::max(most / 4, std::chrono::milliseconds(1)));
  silence_.async_wait([self = weak_from_this(), most](error_code stopped) {
    const auto link = self.lock();
    if (stopped || !link || link->has_ended_) return;
    const auto now = std::chrono::steady_clock::now();
    const bool is_idle = link->is_ready_ && link->queued() == 0;
    if (!is_idle && now - link->last_byte_ > most) {
      return link->fail({ErrorCode::unavailable, link->options_.address.text() +
                                                     ": nothing came for " +
                                                     std::to_string(most.count()) + " ms"});
    }
    if (link->current_ && now - link->current_since_ > kMostTimeouts * most) {
      return link->fail(
          {ErrorCode::unavailable, link->options_.address.text() + ": an answer took more than " +
                                       std::to_string((kMostTimeouts * most).count()) + " ms"});
    }
    link->watch_silence();
  });
}

void PeerLink::fail(const Error& why) { end({why}, false); }

// Requests may be repeated only if the server closed a connection that it had kept open.
void PeerLink::end(End end, bool may_repeat) {
  if (std::exchange(has_ended_, true)) return;
  const auto keep = shared_from_this();
  wire_->close();
  silence_.cancel();
  may_repeat = may_repeat && answers_ > 0;
  const Error why = end.failure ? *end.failure
                                : Error{ErrorCode::unavailable,
                                        options_.address.text() + " closed the connection"};
  std::vector<Request> failed;
  const auto sort_out = [&](Request request) {
    if (may_repeat && !request.is_repeated) {
      request.is_repeated = true;
      unanswered_.push_back(std::move(request));
    } else {
      failed.push_back(std::move(request));
    }
  };
  if (current_) sort_out(std::move(*current_));
  current_.reset();
  for (Request& request : std::exchange(waiting_, {})) sort_out(std::move(request));
  if (may_repeat) end.failure.reset();
  // Call this first, so that the server is already paused when a request reports the failure.
  options_.ended(end);
  for (Request& request : failed) request.done(why);
}

}  // namespace cairn
