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

// One connection to a node and the commands on it, in order, as many at once as there are. For the
// thread of its io_context. It connects when it is made, and is of no use any more once it has
// failed: `ended` is then called, once, before the commands that fail with it are told.
class RedisLink : public std::enable_shared_from_this<RedisLink> {
 public:
  // Replies to what is small are read by hiredis. Values are read into their memory without another
  // copy, and nothing but a value or a line may come on such a link.
  enum class Carries : std::uint8_t { commands, values };
  struct Options {
    boost::asio::io_context& io;
    boost::asio::ssl::context* tls = nullptr;
    const RedisSettings& settings;
    WireAddress node;
    Carries carries = Carries::commands;
    // Given back once it is connected, or has failed.
    std::shared_ptr<void> place = {};
    UniqueFunction<void(const Error&)> ended;
  };
  static std::shared_ptr<RedisLink> open(Options options);
  ~RedisLink();

  // The most that a node may answer. Its connection ends where more comes, while it comes: a node
  // is believed no more than what it stores.
  struct Most {
    std::size_t bytes = 1'024;  // a number, or a line
    std::size_t elements = 0;   // of all lists in it
  };
  struct Command {
    std::string head;               // up to the value
    std::vector<iovec> value = {};  // the caller's until `done`
    std::string tail = {};          // behind it
    std::vector<iovec> into = {};   // where a value that is answered goes; as `value`
    Most most = {};                 // of what is no value
    UniqueFunction<void(Result<RedisReply>)> done = {};
    std::chrono::steady_clock::time_point sent_at = {};  // the link's own
  };
  void send(Command command);
  std::size_t queued() const { return waiting_.size() + sent_.size(); }
  // Everything on it fails so.
  void fail(const Error& why);
  // Of one that has failed: nothing is wrong with its node. A value was too long to be read to its
  // end, and may be what another program has written.
  bool spares_node() const { return spares_node_; }
  // For what reads an answer: whether it may have so many elements more.
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
  bool take_line();  // false: more has to be read first
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
  std::deque<Command> sent_;       // or being sent, the last one
  std::uint64_t asked_bytes_ = 0;  // values that are answers to those
  bool is_writing_ = false;
  std::optional<Result<RedisReply>> early_reply_;
  std::vector<boost::asio::const_buffer> writing_;
  // What has come and was not taken yet.
  std::array<char, 16'384> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::vector<boost::asio::mutable_buffer> value_rest_;  // of a value that is being read
  std::array<char, 2> line_end_{};
  bool reads_value_ = false;
  std::uint64_t skip_bytes_ = 0;  // of a value that nobody wants
  struct FreeReader {
    void operator()(void* reader) const;
  };
  std::unique_ptr<void, FreeReader> reader_;  // hiredis'; of commands
  std::size_t answer_bytes_ = 0;              // of the answer that is being read, and behind it
  std::size_t answer_elements_ = 0;
};

// A command as Redis reads it, of words.
std::string redis_command(std::initializer_list<std::string_view> words);
// SET with a value that is not a part of the text: put between head and tail.
struct RedisSet {
  std::string_view name;
  std::uint64_t value_bytes = 0;
  std::uint64_t ttl_ms = 0;
};
void write_set(const RedisSet& set, std::string& head, std::string& tail);

}  // namespace cairn
