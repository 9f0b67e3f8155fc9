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

// A connection to a server, which runs its requests one after the other. Only for its io_context's
// thread. It connects when created. After `ended` has run, once, it cannot be used any more; the
// requests that fail with it complete after that.
class PeerLink : public std::enable_shared_from_this<PeerLink> {
 public:
  // No failure if the server closed an idle connection.
  struct End {
    std::optional<Error> failure = {};
  };
  struct Options {
    boost::asio::io_context& io;
    boost::asio::ssl::context* tls = nullptr;
    WireAddress address;
    std::vector<uid_t> unix_owners = {};  // whose Unix sockets are accepted
    std::chrono::milliseconds timeout;
    UniqueFunction<void(const End&)> ended;
  };
  static std::shared_ptr<PeerLink> open(Options options);

  struct Answer {
    unsigned status = 0;
    // Set if the status is 200 and whole parts arrived that fit into memory.
    std::optional<std::size_t> parts = {};
  };
  struct Request {
    std::string text;         // the complete request
    std::vector<iovec> into;  // must stay valid until `done`
    std::uint64_t part_bytes = 0;
    UniqueFunction<void(Result<Answer>)> done = {};
    bool is_repeated = false;
  };
  void send(Request request);
  std::size_t queued() const { return waiting_.size() + (current_ ? 1 : 0); }
  // Requests that got no byte of a response because the server was closing the connection. They may
  // be repeated. Call it when this has ended.
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
  int interim_heads_ = 0;  // 1xx responses before the final one
  std::uint64_t answers_ = 0;
  std::deque<Request> waiting_;
  std::optional<Request> current_;
  Answer answer_;
  bool is_writing_ = false;
  bool has_answer_ = false;  // complete, before the end of the write is reported
  std::vector<boost::asio::const_buffer> writing_;
  std::array<char, 16'384> buffer_;  // received bytes that are not processed yet
  std::size_t end_ = 0;
  std::vector<boost::asio::mutable_buffer> body_rest_;
  std::uint64_t skip_bytes_ = 0;  // rest of a body to be ignored
  std::vector<Request> unanswered_;
};

}  // namespace cairn
