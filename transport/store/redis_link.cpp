#include "transport/store/redis_link.hpp"

#include <hiredis/hiredis.h>

#include <algorithm>
#include <boost/asio/error.hpp>
#include <charconv>
#include <cstring>
#include <span>
#include <utility>

#include "base/pieces.hpp"
#include "base/printable.hpp"

namespace cairn {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using Kind = RedisReply::Kind;

// A reply that takes this many time-outs is given up even if bytes still arrive: its memory is
// needed again, and a caller must not wait without end.
constexpr int kMaxTimeouts = 10;
// A value of the wrong size is read and ignored up to this size, or up to the expected size.
constexpr std::uint64_t kMaxSkippedValueBytes = 64 * 1024;
// Commands per write: those of one match.
constexpr std::size_t kMaxGathered = 512;
// Bytes of values requested at once on one connection; two values always may be. A node prepares a
// reply when it reads the request. Replies that wait long leave the CPU cache before they are sent:
// at 512 KiB a value took twice as long.
constexpr std::uint64_t kMaxAskedBytes = 1ull << 20;

// Length of a node's error text that is shown to people.
constexpr std::size_t kMaxErrorBytes = 256;

std::string error_text(std::string_view text) { return printable(text.substr(0, kMaxErrorBytes)); }

// Creates replies for hiredis. Each is limited before its memory is allocated. A list grows with
// its elements, because its header is not trusted.
RedisReply* new_reply(const redisReadTask* task) {
  if (task->parent == nullptr) return new RedisReply;
  return &static_cast<RedisReply*>(task->parent->obj)->list.emplace_back();
}
void* create_text(const redisReadTask* task, char* text, std::size_t bytes) {
  RedisReply* const reply = new_reply(task);
  const bool is_error = task->type == REDIS_REPLY_ERROR;
  reply->kind = is_error ? Kind::error : Kind::text;
  reply->text = is_error ? error_text({text, bytes}) : std::string(text, bytes);
  return reply;
}
void* create_list(const redisReadTask* task, std::size_t count) {
  if (!static_cast<RedisLink*>(task->privdata)->may_have(count)) return nullptr;
  RedisReply* const reply = new_reply(task);
  reply->kind = Kind::list;
  return reply;
}
void* create_integer(const redisReadTask* task, long long number) {
  RedisReply* const reply = new_reply(task);
  reply->kind = Kind::integer;
  reply->integer = number;
  return reply;
}
void* create_nothing(const redisReadTask* task) { return new_reply(task); }
void free_reply(void* reply) { delete static_cast<RedisReply*>(reply); }

redisReader* make_reader(RedisLink* link) {
  // Newer versions of hiredis have functions for RESP3 too, which is not spoken here.
  static redisReplyObjectFunctions functions = [] {
    redisReplyObjectFunctions made{};
    made.createString = create_text;
    // The number is an int before hiredis 1.0.
    made.createArray = [](const redisReadTask* task, auto elements) {
      return create_list(task, elements > 0 ? static_cast<std::size_t>(elements) : 0);
    };
    made.createInteger = create_integer;
    made.createNil = create_nothing;
    made.freeObject = free_reply;
    return made;
  }();
  redisReader* const reader = redisReaderCreateWithFunctions(&functions);
  reader->privdata = link;
  return reader;
}

void append_word(std::string& out, std::string_view word) {
  out += '$';
  out += std::to_string(word.size());
  out += "\r\n";
  out += word;
  out += "\r\n";
}

}  // namespace

std::string redis_command(std::initializer_list<std::string_view> words) {
  std::string text = "*" + std::to_string(words.size()) + "\r\n";
  for (const std::string_view word : words) append_word(text, word);
  return text;
}

void write_set(const RedisSet& set, std::string& head, std::string& tail) {
  head = set.ttl_ms == 0 ? "*4\r\n" : "*6\r\n";
  append_word(head, "SET");
  append_word(head, set.name);
  head += "$" + std::to_string(set.value_bytes) + "\r\n";
  tail = "\r\n";
  append_word(tail, "NX");
  if (set.ttl_ms == 0) return;
  append_word(tail, "PX");
  append_word(tail, std::to_string(set.ttl_ms));
}

void RedisLink::FreeReader::operator()(void* reader) const {
  redisReaderFree(static_cast<redisReader*>(reader));
}

RedisLink::RedisLink(Options options)
    : options_(std::move(options)),
      wire_(make_wire(options_.io, options_.tls)),
      silence_(options_.io),
      last_byte_(std::chrono::steady_clock::now()),
      reader_(make_reader(this)) {}

RedisLink::~RedisLink() = default;

std::shared_ptr<RedisLink> RedisLink::open(Options options) {
  auto link = std::shared_ptr<RedisLink>(new RedisLink(std::move(options)));
  link->connect();
  return link;
}

void RedisLink::connect() {
  watch_silence();
  wire_->connect(options_.node, [self = weak_from_this(), wire = wire_](error_code failed) {
    const auto link = self.lock();
    if (!link || link->has_failed_) return;
    if (failed) return link->fail(connection_lost(link->options_.node, "connect", failed));
    link->connected();
  });
}

void RedisLink::connected() {
  options_.place.reset();
  last_byte_ = std::chrono::steady_clock::now();
  read_more();
  if (!options_.settings.password.empty()) authenticate();
  is_ready_ = true;
  write_next();
}

void RedisLink::authenticate() {
  const RedisSettings& settings = options_.settings;
  Command login;
  login.head = settings.user.empty() ? redis_command({"AUTH", settings.password})
                                     : redis_command({"AUTH", settings.user, settings.password});
  login.done = [this](const Result<RedisReply>& reply) {
    if (!reply || !reply->is_error()) return;
    fail({ErrorCode::unavailable, options_.node.text() + ": " + reply->text});
  };
  // If the login fails, the node refuses the commands after it.
  waiting_.push_front(std::move(login));
}

void RedisLink::send(Command command) {
  if (has_failed_) {
    return command.done(Error{ErrorCode::unavailable, options_.node.text() + " is not reached"});
  }
  if (queued() == 0) last_byte_ = std::chrono::steady_clock::now();
  waiting_.push_back(std::move(command));
  write_next();
}

void RedisLink::write_next() {
  if (is_writing_ || !is_ready_ || has_failed_ || waiting_.empty() || !may_ask_ahead()) return;
  const std::size_t most = options_.carries == Carries::values ? 1 : kMaxGathered;
  writing_.clear();
  const auto now = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < most && !waiting_.empty(); ++i) {
    sent_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    Command& command = sent_.back();
    command.sent_at = now;
    asked_bytes_ += total_bytes(command.into);
    writing_.push_back(asio::buffer(command.head));
    for (const iovec& piece : command.value) {
      writing_.push_back(asio::buffer(static_cast<const void*>(piece.iov_base), piece.iov_len));
    }
    if (!command.tail.empty()) writing_.push_back(asio::buffer(command.tail));
  }
  is_writing_ = true;
  write_rest();
}

bool RedisLink::may_ask_ahead() const { return sent_.size() < 2 || asked_bytes_ < kMaxAskedBytes; }

void RedisLink::write_rest() {
  wire_->write_some(writing_,
                    [self = weak_from_this(), wire = wire_](error_code failed, std::size_t bytes) {
                      const auto link = self.lock();
                      if (!link || link->has_failed_) return;
                      if (failed)
                        return link->fail(connection_lost(link->options_.node, "send", failed));
                      link->last_byte_ = std::chrono::steady_clock::now();
                      drop_front(link->writing_, bytes);
                      if (!link->writing_.empty()) return link->write_rest();
                      link->is_writing_ = false;
                      if (link->early_reply_) {
                        auto reply = std::move(*link->early_reply_);
                        link->early_reply_.reset();
                        link->end_first(std::move(reply));
                      }
                      link->write_next();
                    });
}

void RedisLink::read_more() {
  if (begin_ == end_) begin_ = end_ = 0;
  if (end_ == buffer_.size() && begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= std::exchange(begin_, 0);
  }
  if (end_ == buffer_.size()) {
    return fail({ErrorCode::unavailable, options_.node.text() + " sent a line without an end"});
  }
  wire_->read_some({asio::buffer(buffer_.data() + end_, buffer_.size() - end_)},
                   [self = weak_from_this(), wire = wire_](error_code failed, std::size_t bytes) {
                     const auto link = self.lock();
                     if (!link || link->has_failed_) return;
                     if (failed)
                       return link->fail(connection_lost(link->options_.node, "receive", failed));
                     link->took(bytes);
                   });
}

void RedisLink::took(std::size_t bytes) {
  last_byte_ = std::chrono::steady_clock::now();
  end_ += bytes;
  if (options_.carries == Carries::commands) {
    take_replies();
  } else {
    while (!has_failed_ && !reads_value_ && take_line()) continue;
  }
  if (has_failed_) return;
  if (reads_value_) return read_value();
  read_more();
}

void RedisLink::take_replies() {
  auto* const reader = static_cast<redisReader*>(reader_.get());
  redisReaderFeed(reader, buffer_.data() + begin_, end_ - begin_);
  answer_bytes_ += end_ - begin_;
  begin_ = end_ = 0;
  while (!has_failed_) {
    void* reply = nullptr;
    if (redisReaderGetReply(reader, &reply) != REDIS_OK) {
      if (answer_elements_ > 0 && !may_have(0)) return fail_for_more();
      return fail({ErrorCode::unavailable,
                   options_.node.text() + " does not speak Redis' protocol: " + reader->errstr});
    }
    if (reply == nullptr) break;
    const std::unique_ptr<RedisReply> read(static_cast<RedisReply*>(reply));
    answer_bytes_ = reader->len - reader->pos;
    answer_elements_ = 0;
    end_first(std::move(*read));
  }
  const std::size_t most = sent_.empty() ? 0 : sent_.front().most.bytes;
  if (!has_failed_ && answer_bytes_ > most) {
    fail_for_more();
  }
}

void RedisLink::fail_for_more() {
  fail({ErrorCode::unavailable, options_.node.text() + " sent more than was requested"});
}

bool RedisLink::may_have(std::size_t elements) {
  answer_elements_ += elements;
  return !sent_.empty() && answer_elements_ <= sent_.front().most.elements;
}

bool RedisLink::take_line() {
  if (skip_bytes_ > 0) {
    const std::size_t some = std::min<std::uint64_t>(skip_bytes_, end_ - begin_);
    begin_ += some;
    skip_bytes_ -= some;
    if (skip_bytes_ > 0) return false;
    end_first(Error{ErrorCode::wrong_length, "the value is empty or too long"});
    return true;
  }
  const std::string_view come(buffer_.data() + begin_, end_ - begin_);
  const auto stop = come.find("\r\n");
  if (stop == std::string_view::npos) return false;
  const std::string_view line = come.substr(0, stop);
  begin_ += stop + 2;
  const auto broken = [&] {
    fail({ErrorCode::unavailable, options_.node.text() + " does not speak Redis' protocol"});
    return false;
  };
  if (line.empty() || sent_.empty()) return broken();
  const std::string_view rest = line.substr(1);
  if (line.front() == '+' && !sent_.front().into.empty()) return broken();  // not a value
  if (line.front() == '+' || line.front() == '-') {
    const bool is_error = line.front() == '-';
    end_first(RedisReply{.kind = is_error ? Kind::error : Kind::text,
                         .text = is_error ? error_text(rest) : std::string(rest)});
    return true;
  }
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  if (error != std::errc() || end != rest.data() + rest.size()) return broken();
  if (line.front() == ':') {
    end_first(RedisReply{.kind = Kind::integer, .integer = number});
    return true;
  }
  if (line.front() != '$') return broken();
  if (number < 0) {
    end_first(RedisReply{});
    return true;
  }
  const auto length = static_cast<std::uint64_t>(number);
  const std::vector<iovec>& into = sent_.front().into;
  const std::uint64_t wanted = total_bytes(into);
  if (length > std::max(wanted, kMaxSkippedValueBytes)) {
    end_first(Error{ErrorCode::wrong_length, "the value is far longer"});
    spares_node_ = true;
    fail_for_more();
    return false;
  }
  if (length > wanted || length == 0) {
    skip_bytes_ = length + line_end_.size();
    return true;
  }
  value_rest_.clear();
  for (const iovec& piece : first_bytes(into, length)) {
    value_rest_.emplace_back(piece.iov_base, piece.iov_len);
  }
  value_bytes_ = length;
  value_rest_.push_back(asio::buffer(line_end_));
  const std::size_t here = asio::buffer_copy(value_rest_, asio::buffer(come.substr(stop + 2)));
  begin_ += here;
  drop_front(value_rest_, here);
  reads_value_ = true;
  return true;
}

void RedisLink::read_value() {
  wire_->expect(asio::buffer_size(value_rest_));
  if (value_rest_.empty()) {
    reads_value_ = false;
    if (std::memcmp(line_end_.data(), "\r\n", line_end_.size()) != 0) {
      return fail(
          {ErrorCode::unavailable, options_.node.text() + " sent more bytes than announced"});
    }
    end_first(RedisReply{.kind = Kind::text, .integer = static_cast<std::int64_t>(value_bytes_)});
    if (has_failed_) return;
    return took(0);
  }
  wire_->read_some(value_rest_,
                   [self = weak_from_this(), wire = wire_](error_code failed, std::size_t bytes) {
                     const auto link = self.lock();
                     if (!link || link->has_failed_) return;
                     if (failed)
                       return link->fail(connection_lost(link->options_.node, "receive", failed));
                     link->last_byte_ = std::chrono::steady_clock::now();
                     drop_front(link->value_rest_, bytes);
                     link->read_value();
                   });
}

void RedisLink::end_first(Result<RedisReply> reply) {
  if (sent_.empty() || early_reply_) {
    return fail({ErrorCode::unavailable, options_.node.text() + " sent a reply to no command"});
  }
  // The reply may arrive before the end of the write is reported. Until then the socket uses the
  // command's memory.
  if (is_writing_ && sent_.size() == 1) {
    early_reply_.emplace(std::move(reply));
    return;
  }
  const auto keep = shared_from_this();
  Command first = std::move(sent_.front());
  sent_.pop_front();
  asked_bytes_ -= total_bytes(first.into);
  write_next();
  first.done(std::move(reply));
}

void RedisLink::watch_silence() {
  const auto most = std::chrono::milliseconds(options_.settings.timeout_ms);
  silence_.expires_after(std::max(most / 4, std::chrono::milliseconds(1)));
  silence_.async_wait([self = weak_from_this(), most](error_code stopped) {
    const auto link = self.lock();
    if (stopped || !link || link->has_failed_) return;
    const bool is_idle = link->is_ready_ && link->queued() == 0;
    const auto now = std::chrono::steady_clock::now();
    if (!is_idle && now - link->last_byte_ > most) {
      return link->fail({ErrorCode::unavailable, link->options_.node.text() +
                                                     ": nothing came for " +
                                                     std::to_string(most.count()) + " ms"});
    }
    if (!link->sent_.empty() && now - link->sent_.front().sent_at > kMaxTimeouts * most) {
      return link->fail(
          {ErrorCode::unavailable, link->options_.node.text() + ": an answer took more than " +
                                       std::to_string(kMaxTimeouts * most.count()) + " ms"});
    }
    link->watch_silence();
  });
}

void RedisLink::fail(const Error& why) {
  if (std::exchange(has_failed_, true)) return;
  const auto keep = shared_from_this();
  wire_->close();
  silence_.cancel();
  options_.place.reset();
  std::deque<Command> commands = std::exchange(sent_, {});
  std::ranges::move(std::exchange(waiting_, {}), std::back_inserter(commands));
  // Call this first, so that the node is already paused when a command reports the failure.
  options_.ended(why);
  for (Command& command : commands) command.done(why);
}

}  // namespace cairn
