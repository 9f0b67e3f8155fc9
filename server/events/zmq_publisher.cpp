#include "server/events/zmq_publisher.hpp"

#include <algorithm>
#include <array>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <utility>
#include <vector>

#include "base/thread.hpp"
#include "server/events/event_groups.hpp"
#include "server/events/event_tokens.hpp"
#include "server/events/zmtp_server.hpp"

namespace cairn {
namespace {

// Maximum delay of an event. The replay socket answers at once.
constexpr std::chrono::milliseconds kPoll{10};
// Events read from the ring at once, under its lock.
constexpr std::size_t kPublishedAtOnce = 64;
// Limit for kept batches, whatever their number.
constexpr std::uint64_t kKeptBytes = 64ull << 20;

}  // namespace

class ZmqPublisher::Impl {
 public:
  Impl(const ZmqSettings& settings, const BlockManager& manager, const Clock& clock, Logger& log)
      : settings_(settings),
        manager_(manager),
        clock_(clock),
        log_(log),
        work_(io_.get_executor()),
        history_({.max_batches = std::max(settings.kept_batches, settings.high_water_mark),
                  .max_replayed = settings.kept_batches,
                  .max_bytes = kKeptBytes}),
        next_event_(manager.events().next_id()) {}

  Result<> bind_sockets() {
    CAIRN_TRY(bind(settings_.endpoint, ZmtpServer::Kind::publish, publish_));
    if (settings_.replay_endpoint.empty()) return {};
    return bind(settings_.replay_endpoint, ZmtpServer::Kind::replay, replay_);
  }
  // From here on only the thread uses the sockets.
  void start() {
    thread_ = Thread("zmq events", [this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        guarded("zmq events", [this] {
          io_.run_for(kPoll);
          publish_new();
          publish_->tick();
          if (replay_) replay_->tick();
        });
      }
    });
  }

  const std::string& endpoint() const { return publish_->endpoint(); }
  std::string replay_endpoint() const { return replay_ ? replay_->endpoint() : ""; }

 private:
  Result<> bind(const std::string& endpoint, ZmtpServer::Kind kind,
                std::unique_ptr<ZmtpServer>& out) {
    auto bound = ZmtpServer::bind({.io = io_, .history = history_, .clock = clock_, .log = log_},
                                  {.kind = kind,
                                   .endpoint = endpoint,
                                   .max_clients = settings_.max_clients,
                                   .most_behind = settings_.high_water_mark});
    if (!bound) return std::move(bound).error();
    out = std::move(*bound);
    if (out->is_open_to_network()) {
      log_.warning(
          "the event socket is open to other machines, without authentication or encryption",
          {{"endpoint", out->endpoint()}});
    }
    return {};
  }

  void publish_new() {
    std::array<BlockEvent, kPublishedAtOnce> events;
    while (true) {
      const EventRing::Read read = manager_.events().read(next_event_, events);
      next_event_ = read.next_id;
      if (read.lost > 0) {
        history_.skip();  // subscribers see the missing number
        log_.warning("events were lost before they could be published", {{"events", read.lost}});
      }
      if (read.count == 0) return;
      publish_groups(group_events(std::span(events).first(read.count)));
    }
  }

  // Publishes one batch for each run of groups of the same cache.
  void publish_groups(std::vector<EventGroup> groups) {
    std::vector<KvEvent> batch;
    for (EventGroup& group : groups) {
      if (!batch.empty() && batch.back().group.cache != group.cache) {
        publish_batch(batch);
        batch.clear();
      }
      const std::string cache = manager_.events().cache_name(group.cache);
      if (!settings_.cache.empty() && settings_.cache != cache) continue;
      std::uint32_t block_size = 0;
      std::optional<KvGroupConfig> kv_group;
      if (auto found = manager_.find_cache(cache)) {
        const CacheConfig& config = (*found)->config();
        block_size = static_cast<std::uint32_t>(config.tokens_per_key());
        if (!config.kv_groups.empty()) kv_group = config.kv_groups[group.kv_group];
        if (kv_group && kv_group->kind != KvGroupKind::state) {
          block_size = static_cast<std::uint32_t>(kv_group->shape.page_size);
        }
      }
      for (GroupAndTokens& part : split_by_tokens(manager_, cache, std::move(group))) {
        batch.push_back({.group = std::move(part.group),
                         .tokens = std::move(part.tokens),
                         .block_size = block_size,
                         .kv_group = kv_group});
      }
    }
    publish_batch(batch);
  }

  void publish_batch(std::span<const KvEvent> batch) {
    auto payload = kv_payload(batch, settings_.form);
    if (!payload) return;
    history_.add({.topic = topic_of(manager_.events().cache_name(batch.front().group.cache)),
                  .payload = std::move(*payload)});
  }

  std::string topic_of(const std::string& cache) const {
    constexpr std::string_view kPlace = "{cache}";
    const std::size_t at = settings_.topic.find(kPlace);
    if (at == std::string::npos) return settings_.topic;
    return std::string(settings_.topic).replace(at, kPlace.size(), cache);
  }

  const ZmqSettings settings_;
  const BlockManager& manager_;
  const Clock& clock_;
  Logger& log_;
  boost::asio::io_context io_{1};
  const boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  BatchHistory history_;
  std::unique_ptr<ZmtpServer> publish_;
  std::unique_ptr<ZmtpServer> replay_;  // null if there is none
  std::uint64_t next_event_;
  Thread thread_;  // last, because it uses the others
};

Result<std::unique_ptr<ZmqPublisher>> ZmqPublisher::start(const ZmqSettings& settings,
                                                          const BlockManager& manager,
                                                          const Clock& clock, Logger& log) {
  auto impl = std::make_unique<Impl>(settings, manager, clock, log);
  CAIRN_TRY(impl->bind_sockets());
  impl->start();
  return std::unique_ptr<ZmqPublisher>(new ZmqPublisher(std::move(impl)));
}

ZmqPublisher::ZmqPublisher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ZmqPublisher::~ZmqPublisher() = default;

const std::string& ZmqPublisher::endpoint() const { return impl_->endpoint(); }
std::string ZmqPublisher::replay_endpoint() const { return impl_->replay_endpoint(); }

}  // namespace cairn
