#include <algorithm>
#include <deque>
#include <utility>

#include "base/mutex.hpp"
#include "server/codec/dom_blocks.hpp"
#include "server/codec/ids.hpp"
#include "server/http/body_buffer.hpp"
#include "server/routes/common.hpp"
#include "server/routes/handlers.hpp"

namespace cairn::routes {
namespace {

// What is sent and fetched ahead of it: so many blocks, and of smaller ones so many bytes. Enough
// to keep the socket busy, and a disk at a depth, while the next come; few enough that staging is
// left for others.
constexpr std::size_t kFetchAhead = 3;
constexpr std::uint64_t kFetchAheadBytes = 4ull << 20;
// Blocks that are there are handed to the socket together: a call for each costs small ones more
// than their bytes do.
constexpr std::uint64_t kSendBytes = 2ull << 20;

// The keys of what is still to be sent, end to end: a client that is slow to read holds them all,
// so they are in the bounded memory of bodies, as the body was that they came in.
class KeyQueue {
 public:
  explicit KeyQueue(http::BodyMemory& memory) : scope_(memory.scope()) {}

  // Once. unavailable where that memory is in use.
  Result<> keep(std::span<const BlockKey> keys) {
    std::size_t size = 0;
    for (const BlockKey& key : keys) size += key.view().bytes().size();
    auto bytes = scope_.allocate<std::byte>(size);
    auto lengths = scope_.allocate<std::uint8_t>(keys.size());
    if (!bytes || !lengths) {
      return Error{ErrorCode::unavailable, "the memory for requests' bodies is in use"};
    }
    std::size_t at = 0;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const auto all = keys[i].view().bytes();
      std::ranges::copy(all, bytes->subspan(at).begin());
      (*lengths)[i] = static_cast<std::uint8_t>(all.size());
      at += all.size();
    }
    bytes_ = *bytes;
    lengths_ = *lengths;
    return {};
  }

  // REQUIRES: there is one.
  BlockKey pop() {
    const std::size_t length = lengths_[next_++];
    return BlockKey(bytes_.subspan(std::exchange(at_, at_ + length), length));
  }

 private:
  AllocationScope scope_;
  std::span<const std::byte> bytes_;
  std::span<const std::uint8_t> lengths_;
  std::size_t next_ = 0;
  std::size_t at_ = 0;  // in bytes_
};

// Blocks end to end, each that which was pinned when the request was answered. Fetches a few ahead;
// what answers from another thread shares the queue, and finds it gone where the connection is.
class PrefixDownload final : public http::Download {
 public:
  PrefixDownload(std::shared_ptr<Cache> cache, LeaseHolder holder, http::BodyMemory& memory,
                 std::vector<BlockReader> pinned)
      : queue_(std::make_shared<Queue>()), keys_(memory), pinned_(std::move(pinned)) {
    ahead_ = std::max<std::size_t>(kFetchAhead, kFetchAheadBytes / cache->block_bytes());
    queue_->cache = std::move(cache);
    queue_->holder = std::move(holder);
  }

  // First. `keys` are those of what is pinned.
  Result<> keep(std::span<const BlockKey> keys) { return keys_.keep(keys); }

  void next(UniqueFunction<void(Pieces)> ready) override {
    // Once `waiting` is set another thread may answer, and this object be gone.
    const std::shared_ptr<Queue> queue = queue_;
    for (; queue->sending > 0; --queue->sending) queue->items.pop_front();
    while (queue->items.size() < ahead_ && next_ < pinned_.size()) {
      Item& item = queue->items.emplace_back();
      item.key = keys_.pop();
      item.readers.push_back(std::move(pinned_[next_++]));
      fetch(queue, item);
    }
    {
      MutexLock lock(queue->mutex);
      queue->waiting = std::move(ready);
    }
    answer_front(*queue);
  }

 private:
  struct Item {
    BlockKey key;
    std::vector<BlockReader> readers;  // the last is the one that counts; failed ones stay
    std::optional<Pieces> pieces;      // under the queue's mutex
  };
  struct Queue {
    std::shared_ptr<Cache> cache;
    LeaseHolder holder;       // for whom it is read
    std::deque<Item> items;   // what is sent and what is fetched ahead; changed by next() alone; an
                              // item stays where it is
    std::size_t sending = 0;  // of the items, from the front
    std::vector<iovec> gathered;  // their bytes
    Mutex mutex;
    UniqueFunction<void(Pieces)> waiting CAIRN_GUARDED_BY(mutex);
  };

  static void fetch(const std::shared_ptr<Queue>& queue, Item& item) {
    item.readers.back().fetch([weak = std::weak_ptr(queue), &item](Pieces pieces) {
      if (const auto alive = weak.lock()) fetched(alive, item, std::move(pieces));
    });
  }

  static void fetched(const std::shared_ptr<Queue>& queue, Item& item, Pieces pieces) {
    // A lost copy was dropped; there may be another in a lower tier.
    if (!pieces && item.readers.size() <= kNumTiers &&
        (pieces.error().code == ErrorCode::io_error ||
         pieces.error().code == ErrorCode::checksum_mismatch)) {
      if (auto other = queue->cache->read(item.key, std::nullopt, queue->holder)) {
        item.readers.push_back(std::move(*other));
        return fetch(queue, item);
      }
    }
    {
      MutexLock lock(queue->mutex);
      item.pieces = std::move(pieces);
    }
    answer_front(*queue);
  }

  // Hands out what is there of the front where it is asked for. The caller holds the queue.
  static void answer_front(Queue& queue) {
    UniqueFunction<void(Pieces)> ready;
    Pieces pieces = std::span<const iovec>();
    {
      MutexLock lock(queue.mutex);
      // Nobody but next() changes the items, and that not while it is waited for them.
      if (!queue.waiting || !queue.items.front().pieces) return;
      ready = std::move(queue.waiting);
      queue.waiting = {};
      pieces = gather(queue);
    }
    ready(std::move(pieces));
  }

  static Pieces gather(Queue& queue) {
    if (!*queue.items.front().pieces) return *queue.items.front().pieces;
    queue.gathered.clear();
    std::uint64_t bytes = 0;
    for (const Item& item : queue.items) {
      if (!item.pieces || !*item.pieces || bytes >= kSendBytes) break;
      for (const iovec& piece : **item.pieces) {
        queue.gathered.push_back(piece);
        bytes += piece.iov_len;
      }
      ++queue.sending;
    }
    return std::span<const iovec>(queue.gathered);
  }

  const std::shared_ptr<Queue> queue_;
  KeyQueue keys_;
  std::vector<BlockReader> pinned_;  // up to next_ moved from
  std::size_t next_ = 0;             // the block that is fetched next
  std::size_t ahead_ = kFetchAhead;
};

Result<std::vector<BlockKey>> read_body(const Service& service, const Call& call) {
  CAIRN_TRY(no_query(call));
  auto document = body_document(call, max_values(service));
  if (!document) return std::move(document).error();
  DecodeErrors errors;
  Fields fields(*document, "", errors);
  auto keys = read_keys(fields, "keys", service.manager.options().max_blocks_per_request);
  fields.finish();
  CAIRN_TRY(errors.take());
  return keys;
}

}  // namespace

void read_many(Service& service, const Call& call, Reply reply) {
  auto cache = cache_of(service, call);
  if (!cache) return reply.error(cache.error());
  auto keys = read_body(service, call);
  if (!keys) return reply.error(keys.error());
  const std::vector<KeyView> views(keys->begin(), keys->end());
  std::vector<BlockReader> readers = (*cache)->read_prefix(views, call.holder());

  http::Response response;
  response.content_type = kBytesType;
  response.headers = "Cairn-Matched: " + std::to_string(readers.size()) + "\r\n";
  if (!readers.empty()) {
    response.download_bytes = readers.size() * (*cache)->block_bytes();
    const http::HttpServer* server = service.http.load();
    if (server == nullptr) {
      return reply.error({ErrorCode::unavailable, "the server is starting"});
    }
    const auto present = std::span(*keys).first(readers.size());
    auto download = std::make_unique<PrefixDownload>(std::move(*cache), call.holder(),
                                                     server->bodies(), std::move(readers));
    if (auto kept = download->keep(present); !kept) return reply.error(kept.error());
    response.download = std::move(download);
  }
  reply.send(std::move(response));
}

}  // namespace cairn::routes
