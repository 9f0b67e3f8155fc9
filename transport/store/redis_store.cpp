#include "transport/store/redis_store.hpp"

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <charconv>
#include <map>
#include <optional>
#include <random>
#include <utility>

#include "base/mutex.hpp"
#include "base/pieces.hpp"
#include "base/thread.hpp"
#include "transport/store/circuit.hpp"
#include "transport/store/redis_link.hpp"
#include "transport/store/redis_slots.hpp"
#include "transport/store/redis_topology.hpp"

namespace cairn {
namespace {

namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;
using Kind = RedisReply::Kind;
using std::chrono::milliseconds;

// A slot may move again while a redirect is followed.
constexpr int kMaxHops = 4;
// Number of holders per name, minus one: enough to spread the reads.
constexpr std::string_view kLastHolder = "7";
// A holder's text has at most 1,024 bytes (RemoteHolder), its score about 16.
constexpr RedisLink::Most kMostOfHolders{.bytes = 16 * 1024, .elements = 16};
// Known nodes: a cluster's, and some that were only named in redirects.
constexpr std::size_t kMaxNodes = RedisTopology::kMaxNodes + 64;
// Connections being opened at a time. Each takes about 20 us of the thread that also counts a
// match's deadline.
constexpr std::size_t kMaxConnecting = 64;
// Commands waiting for a node's reply, about 500 bytes each. Further ones are refused.
constexpr std::size_t kMaxCommands = 65'536;
// Keeps the holders sorted by expiry. A score is the expiry (Unix ms of the store's clock) times
// four, plus the mark.
constexpr std::string_view kAnnounce =
    "local time = redis.call('TIME') "
    "local now = time[1] * 1000 + math.floor(time[2] / 1000) "
    "redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. now * 4) "
    "redis.call('ZADD', KEYS[1], (now + ARGV[2]) * 4 + ARGV[3], ARGV[1]) "
    "if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then "
    "redis.call('PEXPIRE', KEYS[1], ARGV[2]) end "
    "return 1";
// Minimum time between two discoveries.
constexpr milliseconds kDiscoveryPause{250};
// Time between two checks of failed nodes.
constexpr milliseconds kFailedPause{500};

struct Node;

// One operation on one name, from the call to its end.
struct Task {
  StoreOperation operation = StoreOperation::probe;
  std::string name;
  std::vector<iovec> memory = {};
  std::uint64_t ttl_ms = 0;
  bool of_holders = false;  // for a probe: finds holders instead of a value
  std::string who = {};
  std::uint8_t mark = 0;
  UniqueFunction<void(Result<bool>, const RedisReply&)> done = {};
  int hops = 0;
  Clock::time_point begun = Clock::now();
  std::shared_ptr<const Node> asked = {};  // the node it was sent to last; null: not sent
  Clock::time_point asked_at = {};

  bool has_value() const {
    return operation == StoreOperation::read || operation == StoreOperation::write;
  }
  RedisLink::Command command() const {
    RedisLink::Command made;
    switch (operation) {
      case StoreOperation::probe:
        made.head = of_holders ? redis_command({"ZREVRANGE", name, "0", kLastHolder, "WITHSCORES"})
                               : redis_command({"EXISTS", name});
        if (of_holders) made.most = kMostOfHolders;
        break;
      case StoreOperation::announce:
        made.head = redis_command(
            {"EVAL", kAnnounce, "1", name, who, std::to_string(ttl_ms), std::to_string(mark)});
        break;
      case StoreOperation::withdraw:
        made.head = redis_command({"ZREM", name, who});
        break;
      case StoreOperation::touch:
        made.head = ttl_ms == 0 ? redis_command({"TOUCH", name})
                                : redis_command({"PEXPIRE", name, std::to_string(ttl_ms)});
        break;
      case StoreOperation::read:
        made.head = redis_command({"GET", name});
        made.into = memory;
        break;
      case StoreOperation::write:
        write_set({.name = name, .value_bytes = total_bytes(memory), .ttl_ms = ttl_ms}, made.head,
                  made.tail);
        made.value = memory;
        break;
    }
    return made;
  }
};
using TaskPtr = std::shared_ptr<Task>;

bool is_yes(const Task& task, const RedisReply& reply) {
  if (task.of_holders) return !reply.list.empty();
  return task.has_value() ? reply.kind == Kind::text : reply.integer > 0;
}

// Members and scores alternate. Ignores invalid scores.
RemoteStore::Holders holders_of(const RedisReply& reply) {
  RemoteStore::Holders holders;
  for (std::size_t i = 0; i + 1 < reply.list.size(); i += 2) {
    const std::string& score = reply.list[i + 1].text;
    std::uint64_t number = 0;
    std::from_chars(score.data(), score.data() + score.size(), number);
    holders.push_back({.who = reply.list[i].text, .mark = static_cast<std::uint8_t>(number % 4)});
  }
  return holders;
}

struct Node {
  WireAddress address;
  std::string name;  // the address as text
  std::shared_ptr<RedisLink> commands;
  std::vector<std::shared_ptr<RedisLink>> values;
  Circuit circuit;
  std::string last_error = {};  // empty once the node has replied again
  bool is_member = false;       // it has slots or is a configured endpoint
  bool is_leaving = false;

  bool is_idle() const {
    const auto has_nothing = [](const auto& link) { return !link || link->queued() == 0; };
    return has_nothing(commands) && std::ranges::all_of(values, has_nothing);
  }
};
using NodePtr = std::shared_ptr<Node>;

class RedisStore final : public RemoteStore {
 public:
  RedisStore(RedisSettings settings, std::unique_ptr<asio::ssl::context> tls)
      : settings_(std::move(settings)),
        tls_(std::move(tls)),
        topology_(settings_, tls_.get()),
        discovery_timer_(io_),
        failed_timer_(io_),
        work_(io_.get_executor()),
        thread_("shared-store", [this](const std::stop_token&) {
          while (!guarded("shared-store", [this] { io_.run(); })) continue;
        }) {
    asio::post(io_, [this] { discover(); });
  }

  ~RedisStore() override {
    asio::post(io_, [this] { end(); });
    thread_.join();
  }

  void probe(Probe probe, UniqueFunction<void(std::vector<Presence>)> done) override {
    asio::post(io_, [this, probe = std::move(probe), done = std::move(done)]() mutable {
      ask_all<Presence>(
          {.names = std::move(probe.names),
           .within = probe.within,
           .read = [](bool there,
                      const RedisReply&) { return there ? Presence::present : Presence::absent; }},
          std::move(done));
    });
  }
  void find_holders(FindHolders find,
                    UniqueFunction<void(std::vector<std::optional<Holders>>)> done) override {
    asio::post(io_, [this, find = std::move(find), done = std::move(done)]() mutable {
      ask_all<std::optional<Holders>>(
          {.names = std::move(find.names),
           .within = find.within,
           .of_holders = true,
           .read = [](bool, const RedisReply& reply) { return std::optional(holders_of(reply)); }},
          std::move(done));
    });
  }
  void announce(Announce announce, UniqueFunction<void(std::size_t)> done) override {
    asio::post(io_, [this, announce = std::move(announce), done = std::move(done)]() mutable {
      begin_announce(std::move(announce), std::move(done));
    });
  }
  void withdraw(Withdraw withdraw) override {
    asio::post(io_, [this, withdraw = std::move(withdraw)]() mutable {
      for (std::string& name : withdraw.names) {
        submit(std::make_shared<Task>(Task{.operation = StoreOperation::withdraw,
                                           .name = std::move(name),
                                           .who = withdraw.who,
                                           .done = [](auto, const auto&) {}}));
      }
    });
  }
  void read(std::vector<Read> reads, ReadDone done) override {
    asio::post(io_, [this, reads = std::move(reads),
                     done = std::make_shared<ReadDone>(std::move(done))]() mutable {
      for (std::size_t i = 0; i < reads.size(); ++i) {
        Task task{.operation = StoreOperation::read,
                  .name = std::move(reads[i].name),
                  .memory = std::move(reads[i].into)};
        task.done = [i, done](const Result<bool>& there, const RedisReply& reply) {
          if (!there) return (*done)(i, there.error());
          if (!*there) return (*done)(i, std::nullopt);
          (*done)(i, static_cast<std::uint64_t>(reply.integer));
        };
        submit(std::make_shared<Task>(std::move(task)));
      }
    });
  }
  void write(Write write, UniqueFunction<void(Result<bool>)> done) override {
    post({.operation = StoreOperation::write,
          .name = std::move(write.name),
          .memory = std::move(write.from),
          .ttl_ms = write.ttl_ms,
          .done = without_reply(std::move(done))});
  }
  void touch(Touch touch, UniqueFunction<void(Result<bool>)> done) override {
    post({.operation = StoreOperation::touch,
          .name = std::move(touch.name),
          .ttl_ms = touch.ttl_ms,
          .done = without_reply(std::move(done))});
  }
  void erase(std::string name) override {
    asio::post(io_, [this, name = std::move(name)] {
      const NodePtr node = node_of(redis_slot_of(name));
      RedisLink* const link = node == nullptr ? nullptr : commands_of(*node);
      if (link == nullptr || link->queued() >= kMaxCommands) return;
      link->send({.head = redis_command({"DEL", name}), .done = [](auto) {}});
    });
  }

  RemoteStoreStats stats() const override {
    RemoteStoreStats stats;
    {
      MutexLock lock(mutex_);
      stats = stats_;
      stats.by_node = by_node_.snapshot();
    }
    for (std::size_t i = 0; i < kNumStoreOperations; ++i) {
      stats.operations[i].durations = durations_[i].snapshot();
    }
    return stats;
  }

 private:
  void post(Task task) {
    asio::post(io_, [this, task = std::make_shared<Task>(std::move(task))] { submit(task); });
  }

  static UniqueFunction<void(Result<bool>, const RedisReply&)> without_reply(
      UniqueFunction<void(Result<bool>)> done) {
    return [done = std::move(done)](Result<bool> result, const RedisReply&) mutable {
      done(std::move(result));
    };
  }

  // Sends the same command for many names, until all have replied or time is up.
  template <class T>
  struct Question {
    std::vector<std::string> names;
    std::chrono::microseconds within;
    bool of_holders = false;
    T (*read)(bool there, const RedisReply& reply);
  };
  template <class T>
  void ask_all(Question<T> question, UniqueFunction<void(std::vector<T>)> done) {
    struct State {
      explicit State(asio::io_context& io) : timer(io) {}
      void answer() {
        if (!done) return;
        timer.cancel();
        std::exchange(done, {})(std::move(answers));
      }
      asio::steady_timer timer;
      std::vector<T> answers;
      std::size_t left = 0;
      UniqueFunction<void(std::vector<T>)> done;
    };
    auto state = std::make_shared<State>(io_);
    state->answers.resize(question.names.size());
    state->left = question.names.size();
    state->done = std::move(done);
    if (state->left == 0) return state->answer();
    state->timer.expires_after(question.within);
    state->timer.async_wait([state](auto stopped) {
      if (!stopped) state->answer();
    });
    for (std::size_t i = 0; i < question.names.size(); ++i) {
      Task task{.operation = StoreOperation::probe,
                .name = std::move(question.names[i]),
                .of_holders = question.of_holders};
      task.done = [state, i, read = question.read](const Result<bool>& there,
                                                   const RedisReply& reply) {
        if (!state->done) return;
        if (there) state->answers[i] = read(*there, reply);
        if (--state->left == 0) state->answer();
      };
      submit(std::make_shared<Task>(std::move(task)));
    }
  }

  void begin_announce(Announce announce, UniqueFunction<void(std::size_t)> done) {
    struct State {
      std::size_t left = 0;
      std::size_t said = 0;
      UniqueFunction<void(std::size_t)> done;
    };
    auto state = std::make_shared<State>();
    state->left = announce.blocks.size();
    state->done = std::move(done);
    if (state->left == 0) return state->done(0);
    for (Announce::Block& block : announce.blocks) {
      Task task{.operation = StoreOperation::announce,
                .name = std::move(block.name),
                .ttl_ms = announce.ttl_ms,
                .who = announce.who,
                .mark = block.mark};
      task.done = [state](const Result<bool>& said, const RedisReply&) {
        state->said += said.has_value() ? 1U : 0U;
        if (--state->left == 0) state->done(state->said);
      };
      submit(std::make_shared<Task>(std::move(task)));
    }
  }

  void submit(const TaskPtr& task) {
    const NodePtr node = node_of(redis_slot_of(task->name));
    if (node == nullptr) {
      return ended(task, Error{ErrorCode::unavailable, "no node of the store is known yet"});
    }
    send_to(node, task, false);
  }

  void send_to(const NodePtr& to, const TaskPtr& task, bool asking) {
    task->asked = nullptr;
    Node& node = *to;
    RedisLink* const link = task->has_value() ? values_of(node) : commands_of(node);
    if (link == nullptr) {
      return ended(
          task, Error{ErrorCode::unavailable, node.name + " is not reached: " + node.last_error});
    }
    const bool is_full = task->has_value()
                             ? link->queued() * node.values.size() >= settings_.max_queued
                             : link->queued() >= kMaxCommands;
    if (is_full) {
      return ended(task, Error{ErrorCode::queue_full, "too much waits for the store"});
    }
    if (asking) link->send({.head = redis_command({"ASKING"}), .done = [](auto) {}});
    RedisLink::Command command = task->command();
    command.done = [this, task, to](Result<RedisReply> reply) {
      answered(*to, task, std::move(reply));
    };
    task->asked = to;
    task->asked_at = Clock::now();
    link->send(std::move(command));
  }

  void answered(Node& node, const TaskPtr& task, Result<RedisReply> reply) {
    if (!reply) return ended(task, std::move(reply).error());
    answers(node);
    const WireAddress& address = node.address;
    if (!reply->is_error()) return ended(task, is_yes(*task, *reply), *reply);
    const std::string& text = reply->text;
    if (const auto redirect = read_redirect(text, address)) {
      if (++task->hops > kMaxHops || stopping_) {
        return ended(task, Error{ErrorCode::unavailable, "the store moves a slot: " + text});
      }
      const NodePtr other = node_at(redirect->node);
      if (other == nullptr) {
        return ended(task, Error{ErrorCode::unavailable, "the store names too many nodes"});
      }
      if (!redirect->is_ask) {
        if (!slots_.empty()) slots_[redirect->slot] = other;
        discover_soon();
      }
      return send_to(other, task, redirect->is_ask);
    }
    if (text.starts_with("OOM")) return ended(task, Error{ErrorCode::no_capacity, text});
    for (const std::string_view word :
         {"LOADING", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "READONLY", "NOAUTH"}) {
      if (!text.starts_with(word)) continue;
      discover_soon();
      return ended(task, Error{ErrorCode::unavailable, address.text() + ": " + text});
    }
    ended(task, Error{ErrorCode::io_error, address.text() + ": " + text});
  }

  void ended(const TaskPtr& task, Result<bool> result, const RedisReply& reply = {}) {
    const auto index = static_cast<std::size_t>(task->operation);
    const auto now = Clock::now();
    const auto took = std::chrono::duration_cast<std::chrono::microseconds>(now - task->begun);
    durations_[index].record(static_cast<std::uint64_t>(took.count()));
    const StoreOutcome outcome = outcome_of(result);
    {
      MutexLock lock(mutex_);
      RemoteStoreStats::Operation& counts = stats_.operations[index];
      ++counts.outcomes[static_cast<std::size_t>(outcome)];
      if (outcome == StoreOutcome::done) {
        counts.bytes += task->operation == StoreOperation::read
                            ? static_cast<std::uint64_t>(reply.integer)
                            : total_bytes(task->memory);
      }
      if (task->asked != nullptr) {
        by_node_.record({.node = task->asked->name,
                         .operation = task->operation,
                         .begun = task->asked_at,
                         .ended = now});
      }
    }
    task->done(std::move(result), reply);
  }

  // --- nodes and their connections
  // Returns null if too many nodes are known and all are needed.
  NodePtr node_at(const WireAddress& address) {
    std::string text = address.text();
    if (const auto at = nodes_.find(text); at != nodes_.end()) return at->second;
    if (nodes_.size() >= kMaxNodes) forget_strangers();
    if (nodes_.size() >= kMaxNodes) return nullptr;
    auto node = std::make_shared<Node>();
    node->address = address;
    node->name = text;
    node->values.resize(std::max(1U, settings_.connections));
    nodes_.emplace(std::move(text), node);
    return node;
  }
  NodePtr node_of(std::uint32_t slot) { return slots_.empty() ? nullptr : slots_[slot]; }

  bool is_endpoint(const WireAddress& address) const {
    return std::ranges::find(settings_.endpoints, address) != settings_.endpoints.end();
  }

  // Drops idle nodes that are not members: they have left, or were only named in a redirect.
  void forget_strangers() {
    for (NodePtr& node : slots_) {
      if (node && !node->is_member) node.reset();
    }
    for (auto at = nodes_.begin(); at != nodes_.end();) {
      const NodePtr node = at->second;
      if (node->is_member || !node->is_idle()) {
        ++at;
        continue;
      }
      at = nodes_.erase(at);
      node->is_leaving = true;
      const Error why{ErrorCode::unavailable, node->name + " has left the store"};
      if (const auto link = node->commands) link->fail(why);
      for (auto& one : node->values) {
        if (const auto link = one) link->fail(why);
      }
    }
  }

  // Returns null during the node's pause after a failure.
  RedisLink* commands_of(Node& node) {
    return opened(node, node.commands, RedisLink::Carries::commands);
  }
  // The connection with the fewest commands.
  RedisLink* values_of(Node& node) {
    std::shared_ptr<RedisLink>* best = &node.values.front();
    for (auto& link : node.values) {
      if (!*best || (link && link->queued() >= (*best)->queued())) continue;
      best = &link;
    }
    return opened(node, *best, RedisLink::Carries::values);
  }
  RedisLink* opened(Node& node, std::shared_ptr<RedisLink>& link, RedisLink::Carries carries) {
    if (link) return link.get();
    if (stopping_ || node.circuit.is_open() || connecting_ >= kMaxConnecting) return nullptr;
    ++connecting_;
    link = RedisLink::open({.io = io_,
                            .tls = tls_.get(),
                            .settings = settings_,
                            .node = node.address,
                            .carries = carries,
                            .place = {this, [](RedisStore* self) { --self->connecting_; }},
                            .ended = [this, &node, &link](const Error& why) {
                              const bool spares_node = link->spares_node();
                              link.reset();
                              if (!spares_node) failed(node, why);
                            }});
    return link.get();
  }

  void failed(Node& node, const Error& why) {
    if (stopping_ || node.is_leaving) return;
    node.last_error = why.detail;
    node.circuit.failed(random_);
    report_nodes();
    discover_soon();
    ask_failed_soon();
  }

  void answers(Node& node) {
    if (node.last_error.empty()) return;
    node.circuit.answered();
    node.last_error.clear();
    report_nodes();
  }

  // A failed node without other requests, such as a primary that returned as a replica, is checked
  // with PING.
  void ask_failed_soon() {
    if (is_asking_failed_ || stopping_) return;
    is_asking_failed_ = true;
    failed_timer_.expires_after(kFailedPause);
    failed_timer_.async_wait([this](auto stopped) {
      is_asking_failed_ = false;
      if (!stopped) ask_failed();
    });
  }

  void ask_failed() {
    bool any = false;
    for (auto& [text, node] : nodes_) {
      if (node->last_error.empty() || !node->is_member) continue;
      any = true;
      RedisLink* const link = commands_of(*node);
      if (link == nullptr) continue;
      link->send({.head = redis_command({"PING"}),
                  .done = [this, node = node](const Result<RedisReply>& reply) {
                    if (reply && !reply->is_error()) answers(*node);
                  }});
    }
    if (any) ask_failed_soon();
  }

  void report_nodes() {
    MutexLock lock(mutex_);
    stats_.nodes.clear();
    for (const auto& [text, node] : nodes_) {
      if (!node->is_member) {
        by_node_.forget(text);
        continue;
      }
      stats_.nodes.push_back(
          {.address = text, .is_open = !node->last_error.empty(), .last_error = node->last_error});
    }
    stats_.is_ready = !slots_.empty();
  }

  // --- which node has what
  void discover_soon() {
    if (is_discovering_ || stopping_) return;
    is_discovering_ = true;
    discovery_timer_.expires_after(kDiscoveryPause);
    discovery_timer_.async_wait([this](auto stopped) {
      is_discovering_ = false;
      if (!stopped) discover();
    });
  }

  // Asks one node per call, in turn among endpoints and known nodes, until one knows the slots.
  void discover() {
    if (is_discovering_ || stopping_) return;
    is_discovering_ = true;
    const NodePtr node = next_to_ask();
    if (node == nullptr || node->circuit.is_open()) return not_discovered();
    topology_.ask(node->address, [this, node](Result<RedisTopology::Slots> slots) {
      asio::post(io_, [this, node, slots = std::move(slots)]() mutable {
        discovered(*node, std::move(slots));
      });
    });
  }

  NodePtr next_to_ask() {
    const std::size_t endpoints = settings_.endpoints.size();
    const std::size_t turn = asked_nodes_++ % (endpoints + nodes_.size());
    NodePtr node =
        turn < endpoints
            ? node_at(settings_.endpoints[turn])
            : std::next(nodes_.begin(), static_cast<std::ptrdiff_t>(turn - endpoints))->second;
    if (node != nullptr && is_endpoint(node->address)) node->is_member = true;
    return node;
  }

  void not_discovered() {
    is_discovering_ = false;
    discover_soon();
  }

  void discovered(Node& node, Result<RedisTopology::Slots> slots) {
    if (stopping_) return;
    if (slots) {
      answers(node);
      return take_slots(*slots);
    }
    if (slots.error().code == ErrorCode::unavailable) {
      failed(node, slots.error());
    } else {
      node.last_error = slots.error().detail;
      report_nodes();
    }
    not_discovered();
  }

  void take_slots(const RedisTopology::Slots& found) {
    // A node that left the cluster gets no more requests, unless it is a configured endpoint.
    for (auto& [text, node] : nodes_) node->is_member = is_endpoint(node->address);
    std::vector<NodePtr> nodes;
    for (const WireAddress& address : found.nodes) {
      const NodePtr& node = nodes.emplace_back(node_at(address));
      if (node == nullptr) continue;
      node->is_member = true;
      commands_of(*node);  // connects now, so that the first match need not wait
    }
    slots_.assign(kRedisSlots, nullptr);
    for (std::size_t slot = 0; slot < kRedisSlots; ++slot) {
      const std::uint16_t owner = found.owner_of[slot];
      if (owner != RedisTopology::kNobody) slots_[slot] = nodes[owner];
    }
    forget_strangers();
    is_discovering_ = false;
    report_nodes();
  }

  void end() {
    stopping_ = true;
    topology_.end();
    discovery_timer_.cancel();
    failed_timer_.cancel();
    const Error why{ErrorCode::cancelled, "the server ends"};
    for (auto& [text, node] : nodes_) {
      if (const auto link = node->commands) link->fail(why);
      for (auto& one : node->values) {
        if (const auto link = one) link->fail(why);
      }
    }
    work_.reset();
  }

  const RedisSettings settings_;
  const std::unique_ptr<asio::ssl::context> tls_;
  // Only for the thread:
  asio::io_context io_{1};
  RedisTopology topology_;
  std::map<std::string, NodePtr> nodes_;
  std::vector<NodePtr> slots_;  // empty: not known yet
  std::size_t connecting_ = 0;  // connections
  asio::steady_timer discovery_timer_;
  asio::steady_timer failed_timer_;
  bool is_discovering_ = false;
  bool is_asking_failed_ = false;
  bool stopping_ = false;
  std::size_t asked_nodes_ = 0;
  std::minstd_rand random_{std::random_device{}()};

  mutable Mutex mutex_;
  RemoteStoreStats stats_ CAIRN_GUARDED_BY(mutex_);
  NodeDurations by_node_ CAIRN_GUARDED_BY(mutex_);
  std::array<DurationHistogram, kNumStoreOperations> durations_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  Thread thread_;  // last: it uses all other members
};

}  // namespace

Result<std::unique_ptr<RemoteStore>> make_redis_store(RedisSettings settings) {
  std::unique_ptr<asio::ssl::context> tls;
  if (settings.tls) {
    auto made = make_wire_tls(settings.tls_files);
    if (!made) return std::move(made).error();
    tls = std::move(*made);
  }
  return std::unique_ptr<RemoteStore>(
      std::make_unique<RedisStore>(std::move(settings), std::move(tls)));
}

}  // namespace cairn
