#pragma once

#include <sys/uio.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/unique_function.hpp"
#include "transport/store/redis_reply.hpp"
#include "transport/store/redis_settings.hpp"
#include "transport/store/wire.hpp"

namespace cairn {

// A connection to a node. Commands are pipelined and complete in order. Only for its io_context's
// thread. It connects when created. After a failure it cannot be used any more: it calls `ended`
// once, and then the commands fail.
class RedisLink : public std::enable_shared_from_this<RedisLink> {
 public:
  // commands: hiredis parses the replies. values: values are read into their memory without another
  // copy, and the reply's integer is their size; only values and single lines are accepted.
  enum class Carries : std::uint8_t { commands, values };
  struct Options {
    boost::asio::io_context& io;
    boost::asio::ssl::context* tls = nullptr;
    const RedisSettings& settings;
    WireAddress node;
    Carries carries = Carries::commands;
    // Released once the connection is established or has failed.
    std::shared_ptr<void> place = {};
    UniqueFunction<void(const Error&)> ended;
  };
  static std::shared_ptr<RedisLink> open(Options options);
  ~RedisLink();

  // Limits of a reply, because the node is not trusted. The connection fails as soon as a reply
  // exceeds them.
  struct Most {
    std::size_t bytes = 1'024;  // enough for a number or a line
    std::size_t elements = 0;   // of all lists in the reply
  };
  struct Command {
    std::string head;               // everything before the value
    std::vector<iovec> value = {};  // must stay valid until `done`
    std::string tail = {};          // everything after the value
    std::vector<iovec> into = {};   // for a value in the reply, which may be shorter; until `done`
    Most most = {};                 // for replies other than a value
    UniqueFunction<void(Result<RedisReply>)> done = {};
    std::chrono::steady_clock::time_point sent_at = {};  // only the link uses it
  };
  void send(Command command);
  std::size_t queued() const { return waiting_.size() + sent_.size(); }
  // Closes the connection; all commands fail with `why`.
  void fail(const Error& why);
  // After a failure: true if the node itself is fine. It sent a value that is too long to skip,
  // perhaps written by another program.
  bool spares_node() const { return spares_node_; }
  // For the reply parser: counts list elements and returns whether the limit allows them.
  bool may_have(std::size_t elements);

 private:
  explicit RedisLink(Options options);
  void connect();
  void connected();
  void authenticate();
  void write_next();
  bool may_ask_ahead() const;
  void write_rest();
  void read_more();
  void read_value();
  void took(std::size_t bytes);
  bool take_line();  // false: needs more bytes
  void take_replies();
  void end_first(Result<RedisReply> reply);
  void watch_silence();
  void fail_for_more();

  Options options_;
  const std::shared_ptr<Wire> wire_;
  boost::asio::steady_timer silence_;
  std::chrono::steady_clock::time_point last_byte_;
  bool is_ready_ = false;
  bool has_failed_ = false;
  bool spares_node_ = false;
  std::deque<Command> waiting_;
  std::deque<Command> sent_;       // the last one may still be being sent
  std::uint64_t asked_bytes_ = 0;  // size of the values that sent_ asks for
  bool is_writing_ = false;
  std::optional<Result<RedisReply>> early_reply_;
  std::vector<boost::asio::const_buffer> writing_;
  // Received bytes that are not processed yet.
  std::array<char, 16'384> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::vector<boost::asio::mutable_buffer> value_rest_;  // not yet read, of the current value
  std::array<char, 2> line_end_{};
  bool reads_value_ = false;
  std::uint64_t value_bytes_ = 0;  // of the current value
  std::uint64_t skip_bytes_ = 0;   // rest of a value to be ignored
  struct FreeReader {
    void operator()(void* reader) const;
  };
  std::unique_ptr<void, FreeReader> reader_;  // hiredis, for commands
  std::size_t answer_bytes_ = 0;              // of the current reply, and received bytes after it
  std::size_t answer_elements_ = 0;
};

// Encodes a command for Redis.
std::string redis_command(std::initializer_list<std::string_view> words);
// Encodes a SET. The value itself goes between head and tail.
struct RedisSet {
  std::string_view name;
  std::uint64_t value_bytes = 0;
  std::uint64_t ttl_ms = 0;
};
void write_set(const RedisSet& set, std::string& head, std::string& tail);

}  // namespace cairn
