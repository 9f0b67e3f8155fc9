#include "server/events/event_streams.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "server/codec/document.hpp"
#include "server/codec/ids.hpp"
#include "server/codec/kv_group_names.hpp"
#include "server/events/event_groups.hpp"
#include "server/events/event_tokens.hpp"

namespace cairn {
namespace {

// Events read from the ring at once, under its lock: takes a microsecond.
constexpr std::size_t kReadEvents = 64;
// A piece of the response ends after this much text. One piece per poll is 12 MB/s per client.
constexpr std::size_t kPieceBytes = 256 * 1024;

void append_event(std::string& out, std::uint64_t id, std::string_view name,
                  const ordered_json& data) {
  out += "id: " + std::to_string(id) + "\nevent: ";
  out += name;
  out += "\ndata: " + write_document(data, WireFormat::text) + "\n\n";
}

}  // namespace

// One client's position in the ring. Used by one thread at a time: the network thread that asks for
// more, or poll() while it waits.
class EventStreams::Stream {
 public:
  Stream(EventStreams& streams, EventInterest interest)
      : streams_(streams), interest_(std::move(interest)), sent_at_(streams.clock_.now()) {
    const EventRing& ring = streams_.manager_.events();
    next_ = interest_.after ? *interest_.after + 1 : ring.next_id();
    ++streams_.open_;
  }
  ~Stream() { --streams_.open_; }

  using Piece = std::span<const iovec>;

  // Sent at once, so that the client knows that it listens. nullopt after the first call.
  std::optional<Piece> first_piece() {
    if (!std::exchange(fresh_, false)) return std::nullopt;
    text_ = ": listening\nretry: 1000\n\n";
    return piece();
  }
  // Returns nullopt if there are no new events; an empty piece ends the stream.
  std::optional<Piece> next_piece() {
    if (streams_.ended_ || (interest_.may_listen && !interest_.may_listen())) return Piece();
    text_.clear();
    collect();
    if (text_.empty() && streams_.clock_.now() - sent_at_ >= kKeepAlive) text_ = ":\n\n";
    if (text_.empty()) return std::nullopt;
    return piece();
  }

 private:
  Piece piece() {
    sent_at_ = streams_.clock_.now();
    piece_ = {text_.data(), text_.size()};
    return {&piece_, 1};
  }

  void collect() {
    const EventRing& ring = streams_.manager_.events();
    std::array<BlockEvent, kReadEvents> events;
    while (text_.size() < kPieceBytes) {
      const EventRing::Read read = ring.read(next_, events);
      next_ = read.next_id;
      if (read.lost > 0) send_gap(next_ - read.count, read.lost);
      if (read.count == 0) return;
      for (const EventGroup& group : group_events(std::span(events).first(read.count))) send(group);
    }
  }

  void send_gap(std::uint64_t first_there, std::uint64_t lost) {
    append_event(text_, first_there - 1, "gap", {{"lost", lost}});
  }

  void send(const EventGroup& group) {
    const std::string cache = streams_.manager_.events().cache_name(group.cache);
    const auto& wanted = interest_.caches;
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), cache) == wanted.end()) return;
    ordered_json data = {{"cache", cache}};
    data["tier"] = group.tier ? ordered_json(to_string(*group.tier)) : ordered_json(nullptr);
    if (group.kind != BlockEventKind::cleared) {
      ordered_json keys = ordered_json::array();
      for (const BlockKey& key : group.keys) keys.push_back(key_text(key));
      data["keys"] = std::move(keys);
      if (const auto found = streams_.manager_.find_cache(cache)) {
        const KvGroupNames groups((*found)->config());
        if (groups.are_shown()) data["kv_group"] = groups.name(group.kv_group);
      }
    }
    if (group.kind == BlockEventKind::stored) {
      data["parent"] = group.parent ? ordered_json(key_text(*group.parent)) : ordered_json(nullptr);
      const auto tokens = tokens_of(streams_.manager_, cache, group);
      if (!tokens.empty()) data["tokens"] = tokens;
    }
    data["time_ms"] = group.unix_ms;
    append_event(text_, group.last_id, to_string(group.kind), data);
  }

  EventStreams& streams_;
  const EventInterest interest_;
  std::uint64_t next_ = 0;  // id
  TimePoint sent_at_;
  bool fresh_ = true;
  std::string text_;
  iovec piece_{};
};

class EventStreams::Body final : public http::Download {
 public:
  Body(EventStreams& streams, EventInterest interest)
      : streams_(streams), stream_(std::make_shared<Stream>(streams, std::move(interest))) {}

  void next(UniqueFunction<void(Pieces)> ready) override {
    if (const auto piece = stream_->first_piece()) return ready(*piece);
    // poll() writes the rest, so that this thread can answer other requests.
    streams_.wait({stream_, std::move(ready)});
  }

 private:
  EventStreams& streams_;
  const std::shared_ptr<Stream> stream_;
};

EventStreams::EventStreams(const BlockManager& manager, const Clock& clock,
                           std::uint32_t max_streams)
    : manager_(manager), clock_(clock), max_streams_(std::min(max_streams, kMaxStreams)) {}
EventStreams::~EventStreams() = default;

Result<std::unique_ptr<http::Download>> EventStreams::open(EventInterest interest) {
  if (open_ >= max_streams_) {
    return Error{ErrorCode::too_many,
                 std::to_string(max_streams_) + " event streams are open, the maximum"};
  }
  return std::unique_ptr<http::Download>(std::make_unique<Body>(*this, std::move(interest)));
}

void EventStreams::wait(Waiting waiting) {
  MutexLock lock(mutex_);
  waiting_.push_back(std::move(waiting));
}

void EventStreams::poll() {
  std::vector<Waiting> all;
  {
    MutexLock lock(mutex_);
    all.swap(waiting_);
  }
  for (Waiting& each : all) {
    const auto stream = each.stream.lock();
    if (stream == nullptr) continue;
    if (const auto piece = stream->next_piece()) {
      each.ready(*piece);
    } else {
      wait(std::move(each));
    }
  }
}

void EventStreams::end() {
  ended_ = true;
  poll();
}

}  // namespace cairn
