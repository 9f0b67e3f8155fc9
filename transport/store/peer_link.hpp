#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/unique_function.hpp"
#include "transport/store/wire.hpp"

namespace cairn {

// A connection to a server and the requests on it, one after the other. For the thread of its
// io_context. It connects when it is made, and is of no use any more once `ended` was called, once,
// before the requests that fail with it are told.
class PeerLink : public std::enable_shared_from_this<PeerLink> {
 public:
  // How it ended: a server closes what is idle, which is no failure of its.
  struct End {
    std::optional<Error> failure = {};
  };
  struct Options {
    boost::asio::io_context& io;
    boost::asio::ssl::context* tls = nullptr;
    WireAddress address;
    std::vector<uid_t> unix_owners = {};  // of sockets that it may be
    std::chrono::milliseconds timeout;
    UniqueFunction<void(const End&)> ended;
  };
  static std::shared_ptr<PeerLink> open(Options options);

  struct Answer {
    unsigned status = 0;
    // 200, and whole parts that there is memory for: they are there.
    std::optional<std::size_t> parts = {};
  };
  struct Request {
    std::string text;         // head and body
    std::vector<iovec> into;  // its memory until `done`
    std::uint64_t part_bytes = 0;
    UniqueFunction<void(Result<Answer>)> done = {};
    bool is_repeated = false;
  };
  void send(Request request);
  std::size_t queued() const { return waiting_.size() + (current_ ? 1 : 0); }
  // What was asked for on a connection that the server was closing, and has not been answered with
  // a byte: it may be asked for again. To be taken when this has ended.
  std::vector<Request> take_unanswered() { return std::move(unanswered_); }
  void fail(const Error& why);

 private:
  explicit PeerLink(Options options);
  void connect();
  void send_next();
  void write_rest();
  void read_more();
  void took(std::size_t bytes);
  void take_head();
  void read_body();
  void end_current();
  void watch_silence();
  void end(End end, bool may_repeat);

  Options options_;
  const std::shared_ptr<Wire> wire_;
  boost::asio::steady_timer silence_;
  std::chrono::steady_clock::time_point last_byte_;
  std::chrono::steady_clock::time_point current_since_{};
  bool is_ready_ = false;
  bool has_ended_ = false;
  bool keeps_alive_ = true;
  int interim_heads_ = 0;  // before the answer
  std::uint64_t answers_ = 0;
  std::deque<Request> waiting_;
  std::optional<Request> current_;
  Answer answer_;
  bool is_writing_ = false;
  bool has_answer_ = false;  // all of it, while the request is still being told as sent
  std::vector<boost::asio::const_buffer> writing_;
  std::array<char, 16'384> buffer_;  // what has come and was not taken yet
  std::size_t end_ = 0;
  std::vector<boost::asio::mutable_buffer> body_rest_;
  std::uint64_t skip_bytes_ = 0;  // of a body that nobody wants
  std::vector<Request> unanswered_;
};

}  // namespace cairn
