#include "server/events/zmq_publisher.hpp"

#include <zmq.h>

#include <array>
#include <deque>
#include <utility>
#include <vector>

#include "base/thread.hpp"
#include "server/events/event_groups.hpp"
#include "server/events/event_tokens.hpp"

namespace cairn {
namespace {

// How late an event is told at the most; the replay socket is answered at once.
constexpr long kPollMs = 10;
// Taken from the ring under its lock at a time.
constexpr std::size_t kPublishedAtOnce = 64;
// Of what is kept for replay, whatever the number of batches.
constexpr std::size_t kKeptBytes = 64ull << 20;
constexpr int kReplayMark = 1'000;  // messages waiting for one who replays; then it is let go

struct CloseContext {
  void operator()(void* context) const { zmq_ctx_term(context); }
};
struct CloseSocket {
  void operator()(void* socket) const { zmq_close(socket); }
};
using Context = std::unique_ptr<void, CloseContext>;
using Socket = std::unique_ptr<void, CloseSocket>;

struct BoundSocket {
  Socket socket;
  std::string endpoint;
};

struct SocketPlan {
  int kind = 0;
  int high_water_mark = 0;
  const std::string& endpoint;
};

Result<BoundSocket> bind(void* context, const SocketPlan& plan) {
  const auto failed = [&plan](const char* what) {
    return Error{ErrorCode::io_error,
                 std::string(what) + " '" + plan.endpoint + "': " + zmq_strerror(zmq_errno())};
  };
  Socket socket(zmq_socket(context, plan.kind));
  if (socket == nullptr) return failed("no ZeroMQ socket for");
  const int linger_ms = 0;
  zmq_setsockopt(socket.get(), ZMQ_LINGER, &linger_ms, sizeof linger_ms);
  zmq_setsockopt(socket.get(), ZMQ_SNDHWM, &plan.high_water_mark, sizeof plan.high_water_mark);
  // What strangers may send: a subscription, or the number of an event. Without it each of the
  // messages that are queued would be taken whole, whatever its length.
  const std::int64_t max_bytes = 4096;
  zmq_setsockopt(socket.get(), ZMQ_MAXMSGSIZE, &max_bytes, sizeof max_bytes);
  if (zmq_bind(socket.get(), plan.endpoint.c_str()) != 0) return failed("cannot publish events on");
  char bound[256] = "";
  std::size_t bytes = sizeof bound;
  zmq_getsockopt(socket.get(), ZMQ_LAST_ENDPOINT, bound, &bytes);
  return BoundSocket{std::move(socket), bound};
}

std::string big_endian(std::uint64_t number) {
  std::string bytes(8, '\0');
  for (std::size_t i = 8; i-- > 0; number >>= 8) bytes[i] = static_cast<char>(number & 0xff);
  return bytes;
}

// True where all of the frames were taken.
bool send_all(void* socket, std::initializer_list<std::string_view> frames) {
  std::size_t left = frames.size();
  for (std::string_view frame : frames) {
    const int more = --left > 0 ? ZMQ_SNDMORE : 0;
    if (zmq_send(socket, frame.data(), frame.size(), ZMQ_DONTWAIT | more) < 0) return false;
  }
  return true;
}

std::vector<std::string> receive_all(void* socket) {
  std::vector<std::string> frames;
  int more = 1;
  while (more != 0) {
    zmq_msg_t message;
    zmq_msg_init(&message);
    if (zmq_msg_recv(&message, socket, ZMQ_DONTWAIT) < 0) {
      zmq_msg_close(&message);
      return {};
    }
    frames.emplace_back(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
    more = zmq_msg_more(&message);
    zmq_msg_close(&message);
  }
  return frames;
}

}  // namespace

class ZmqPublisher::Impl {
 public:
  Impl(const ZmqSettings& settings, const BlockManager& manager, Logger& log, Context context)
      : settings_(settings),
        manager_(manager),
        log_(log),
        context_(std::move(context)),
        next_event_(manager.events().next_id()) {}

  Result<> bind_sockets() {
    auto publish =
        bind(context_.get(), {.kind = ZMQ_PUB,
                              .high_water_mark = static_cast<int>(settings_.high_water_mark),
                              .endpoint = settings_.endpoint});
    if (!publish) return std::move(publish).error();
    publish_ = std::move(*publish);
    if (settings_.replay_endpoint.empty()) return {};
    auto replay = bind(context_.get(), {.kind = ZMQ_ROUTER,
                                        .high_water_mark = kReplayMark,
                                        .endpoint = settings_.replay_endpoint});
    if (!replay) return std::move(replay).error();
    replay_ = std::move(*replay);
    return {};
  }
  // The sockets are the thread's from here on.
  void start() {
    thread_ = Thread("zmq events", [this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        guarded("zmq events", [this] {
          wait();
          publish_new();
        });
      }
    });
  }

  const BoundSocket& publish() const { return publish_; }
  const BoundSocket& replay() const { return replay_; }

 private:
  struct Batch {
    std::uint64_t number = 0;
    std::string payload;
  };

  void wait() {
    zmq_pollitem_t item{replay_.socket.get(), 0, ZMQ_POLLIN, 0};
    const int items = replay_.socket == nullptr ? 0 : 1;
    if (zmq_poll(&item, items, kPollMs) > 0) answer_replay();
  }

  void publish_new() {
    std::array<BlockEvent, kPublishedAtOnce> events;
    while (true) {
      const EventRing::Read read = manager_.events().read(next_event_, events);
      next_event_ = read.next_id;
      if (read.lost > 0) {
        ++next_number_;  // never sent: subscribers see that there is something that they missed
        log_.warning("events were lost before they could be published", {{"events", read.lost}});
      }
      if (read.count == 0) return;
      publish_groups(group_events(std::span(events).first(read.count)));
    }
  }

  // A batch for each run of one cache's.
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
      if (auto found = manager_.find_cache(cache)) {
        block_size = static_cast<std::uint32_t>((*found)->config().shape.page_size);
      }
      for (GroupAndTokens& part : split_by_tokens(manager_, cache, std::move(group))) {
        batch.push_back({.group = std::move(part.group),
                         .tokens = std::move(part.tokens),
                         .block_size = block_size});
      }
    }
    publish_batch(batch);
  }

  void publish_batch(std::span<const KvEvent> batch) {
    auto payload = kv_payload(batch, settings_.form);
    if (!payload) return;
    const std::uint64_t number = next_number_++;
    send_all(publish_.socket.get(),
             {topic_of(manager_.events().cache_name(batch.front().group.cache)), big_endian(number),
              *payload});
    kept_bytes_ += payload->size();
    kept_.push_back({number, std::move(*payload)});
    while (kept_.size() > settings_.kept_batches || kept_bytes_ > kKeptBytes) {
      kept_bytes_ -= kept_.front().payload.size();
      kept_.pop_front();
    }
  }

  std::string topic_of(const std::string& cache) const {
    constexpr std::string_view kPlace = "{cache}";
    const std::size_t at = settings_.topic.find(kPlace);
    if (at == std::string::npos) return settings_.topic;
    return std::string(settings_.topic).replace(at, kPlace.size(), cache);
  }

  // [who, empty, the first number wanted]
  void answer_replay() {
    void* socket = replay_.socket.get();
    const std::vector<std::string> frames = receive_all(socket);
    if (frames.size() != 3 || frames[2].size() != 8) return;
    std::uint64_t from = 0;
    for (char byte : frames[2]) from = from << 8 | static_cast<unsigned char>(byte);
    for (const Batch& batch : kept_) {
      if (batch.number < from) continue;
      if (!send_all(socket, {frames[0], "", big_endian(batch.number), batch.payload})) return;
    }
    send_all(socket, {frames[0], "", big_endian(~std::uint64_t{0}), ""});
  }

  const ZmqSettings settings_;
  const BlockManager& manager_;
  Logger& log_;
  Context context_;
  BoundSocket publish_;
  BoundSocket replay_;
  std::uint64_t next_event_;
  std::uint64_t next_number_ = 0;
  std::deque<Batch> kept_;
  std::size_t kept_bytes_ = 0;
  Thread thread_;  // last: it uses all the others
};

Result<std::unique_ptr<ZmqPublisher>> ZmqPublisher::start(const ZmqSettings& settings,
                                                          const BlockManager& manager,
                                                          Logger& log) {
  Context context(zmq_ctx_new());
  if (context == nullptr) return Error{ErrorCode::internal, "there is no ZeroMQ context"};
  auto impl = std::make_unique<Impl>(settings, manager, log, std::move(context));
  CAIRN_TRY(impl->bind_sockets());
  impl->start();
  return std::unique_ptr<ZmqPublisher>(new ZmqPublisher(std::move(impl)));
}

ZmqPublisher::ZmqPublisher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ZmqPublisher::~ZmqPublisher() = default;

const std::string& ZmqPublisher::endpoint() const { return impl_->publish().endpoint; }
const std::string& ZmqPublisher::replay_endpoint() const { return impl_->replay().endpoint; }

}  // namespace cairn
