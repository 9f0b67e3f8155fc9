#include <algorithm>
#include <deque>
#include <utility>

#include "base/hash.hpp"
#include "base/mutex.hpp"
#include "blockmgr/remote_tier/remote_context.hpp"
#include "server/codec/dom_blocks.hpp"
#include "server/codec/ids.hpp"
#include "server/http/body_buffer.hpp"
#include "server/routes/common.hpp"
#include "server/routes/handlers.hpp"

namespace cairn::routes {
namespace {

// Blocks sent or fetched ahead: at least this number, and for small blocks up to this many bytes.
// Enough to keep the socket and the disk busy, but few enough to leave staging memory for others.
constexpr std::size_t kFetchAhead = 3;
constexpr std::uint64_t kFetchAheadBytes = 4ull << 20;
// Blocks in memory are passed to the socket together: for small blocks a call costs more than their
// bytes.
constexpr std::uint64_t kSendBytes = 2ull << 20;
// Bytes of a block for another server that are passed to the socket together. Their checksum is
// computed first, and they are still in the core's own cache (1 MiB or more) when they are sent.
constexpr std::uint64_t kHashedBytes = 512 * 1024;
// Most blocks per read by another server, which requests the next ones meanwhile. Each pinned block
// costs about 200 bytes.
constexpr std::size_t kMaxShared = 256;

struct ReadRequest {
  std::shared_ptr<Cache> cache;
  std::vector<BlockKey> keys = {};
  KvGroupNumber kv_group = 0;               // of all keys
  std::optional<ShardSelector> shard = {};  // of each block; nullopt: whole blocks
  LeaseHolder holder;                       // who reads them
  std::shared_ptr<LeaseQuota> pins;         // counts the pins
  bool is_shared = false;  // for another server's shared tier: a header follows each block
  bool is_lent = false;    // that server then has a copy
  std::uint64_t fingerprint = 0;
  std::uint64_t block_bytes = 0;  // that are sent of each block
};

Result<BlockReader> read_one(const ReadRequest& request, KeyView key) {
  return request.is_lent ? request.cache->lend(key, request.pins)
                         : request.cache->read(key, request.shard, request.holder, request.pins);
}

// A block for another server: its bytes, then the header that it would have in a shared store. The
// checksum is computed as the bytes are handed out, so none are read twice.
class RemoteParts {
 public:
  // Looks up the parent now: a block read from disk is no longer pinned afterwards.
  RemoteParts(const ReadRequest& request, const BlockKey& key, BlockReader& reader,
              std::span<const iovec> bytes)
      : reader_(reader),
        left_(bytes.begin(), bytes.end()),
        block_{.key = key,
               .parent = request.cache->parent(key),
               .size_bytes = reader.size_bytes(),
               .checksum = reader.checksum().value_or(0)},
        fingerprint_(request.fingerprint) {
    if (!reader.checksum()) hash_.emplace();
  }

  // Appends up to `most` bytes to `out`; returns their number.
  std::uint64_t take(std::uint64_t most, std::vector<iovec>& out) {
    std::uint64_t taken = 0;
    while (taken < most && next_ < left_.size()) {
      iovec& left = left_[next_];
      const std::size_t some = std::min<std::size_t>(left.iov_len, most - taken);
      out.push_back({left.iov_base, some});
      if (hash_) hash_->add({static_cast<const std::byte*>(left.iov_base), some});
      left = {static_cast<std::byte*>(left.iov_base) + some, left.iov_len - some};
      taken += some;
      if (left.iov_len == 0) ++next_;
    }
    return taken;
  }
  bool is_taken() const { return next_ == left_.size(); }

  // REQUIRES: is_taken(). The header stays at this address.
  iovec header() {
    if (hash_) {
      block_.checksum = hash_->value();
      reader_.keep_checksum(block_.checksum);
    }
    header_ = write_remote_header(fingerprint_, block_);
    return {header_.data(), header_.size()};
  }

 private:
  BlockReader& reader_;
  std::vector<iovec> left_;
  std::size_t next_ = 0;  // index in left_
  RemoteBlock block_;
  const std::uint64_t fingerprint_;
  std::optional<PiecewiseHash> hash_;  // nullopt: the checksum is known
  RemoteHeader header_{};
};

// The keys still to be sent, end to end. A slow client holds them for long, so they are in the
// bounded memory of bodies, like the body that they came in.
class KeyQueue {
 public:
  explicit KeyQueue(http::BodyMemory& memory) : scope_(memory.scope()) {}

  // Call once. Error: unavailable if that memory is used up.
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

  // REQUIRES: a key is left.
  BlockKey pop() {
    const std::size_t length = lengths_[next_++];
    return BlockKey(bytes_.subspan(std::exchange(at_, at_ + length), length));
  }

 private:
  AllocationScope scope_;
  std::span<const std::byte> bytes_;
  std::span<const std::uint8_t> lengths_;
  std::size_t next_ = 0;
  std::size_t at_ = 0;  // offset in bytes_
};

// Sends blocks end to end. Pins all of them at first, for the cache's default lease time. After
// that it pins only those sent next, so that a slow client keeps few blocks from being evicted. If
// a block was evicted before its turn, the response is cut off. Fetches a few blocks ahead.
// Callbacks on other threads hold the queue weakly: it is gone when the connection is.
class PrefixDownload final : public http::Download {
 public:
  // Does not keep the request's keys. Borrows the clock.
  PrefixDownload(ReadRequest request, http::BodyMemory& memory, const Clock& clock,
                 std::vector<BlockReader> pinned, Span span)
      : span_(std::move(span)),
        queue_(std::make_shared<Queue>()),
        keys_(memory),
        clock_(clock),
        hold_until_(clock.now() +
                    std::chrono::milliseconds(request.cache->config().default_lease_ms)),
        count_(pinned.size()),
        pinned_(std::move(pinned)) {
    ahead_ = std::max<std::size_t>(kFetchAhead, kFetchAheadBytes / request.block_bytes);
    queue_->request = std::move(request);
    queue_->request.keys = {};
  }

  // Call first. `keys` are those of the pinned blocks.
  Result<> keep(std::span<const BlockKey> keys) { return keys_.keep(keys); }

  void next(UniqueFunction<void(Pieces)> ready) override {
    // Once `waiting` is set, another thread may respond and destroy this object.
    const std::shared_ptr<Queue> queue = queue_;
    for (; queue->sending > 0; --queue->sending) queue->items.pop_front();
    if (next_ < pinned_.size() && clock_.now() >= hold_until_) pinned_.clear();
    for (; queue->items.size() < ahead_ && next_ < count_; ++next_) {
      Item& item = queue->items.emplace_back();
      item.key = in_group(keys_.pop(), queue_->request.kv_group);
      Result<BlockReader> reader =
          next_ < pinned_.size() ? std::move(pinned_[next_]) : read_one(queue->request, item.key);
      if (reader) {
        item.readers.push_back(std::move(*reader));
        fetch(queue, item);
      } else {
        MutexLock lock(queue->mutex);
        item.pieces = reader.error();
      }
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
    std::vector<BlockReader> readers;       // the last one is used; failed ones stay
    std::optional<Pieces> pieces;           // guarded by the queue's mutex
    std::optional<RemoteParts> parts = {};  // the rest to send to another server
  };
  struct Queue {
    ReadRequest request;
    // Items being sent, then those fetched ahead. Only next() changes it. Items keep their address.
    std::deque<Item> items;
    std::size_t sending = 0;      // items being sent, from the front
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
    // The lost copy was dropped; a lower tier may have another.
    if (!pieces && item.readers.size() <= kNumTiers &&
        (pieces.error().code == ErrorCode::io_error ||
         pieces.error().code == ErrorCode::checksum_mismatch)) {
      if (auto other = read_one(queue->request, item.key)) {
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

  // Passes on what is ready at the front, if requested. The caller owns the queue.
  static void answer_front(Queue& queue) {
    UniqueFunction<void(Pieces)> ready;
    Pieces pieces = std::span<const iovec>();
    {
      MutexLock lock(queue.mutex);
      // Only next() changes the items, and not while it waits for them.
      if (!queue.waiting || !queue.items.front().pieces) return;
      ready = std::move(queue.waiting);
      queue.waiting = {};
      pieces = queue.request.is_shared ? gather_remote(queue) : gather(queue);
    }
    ready(std::move(pieces));
  }

  static Pieces gather(Queue& queue) {
    if (!*queue.items.front().pieces) return *queue.items.front().pieces;
    queue.gathered.clear();
    std::uint64_t bytes = 0;
    for (Item& item : queue.items) {
      if (!item.pieces || !*item.pieces || bytes >= kSendBytes) break;
      for (const iovec& piece : **item.pieces) {
        queue.gathered.push_back(piece);
        bytes += piece.iov_len;
      }
      ++queue.sending;
    }
    return std::span<const iovec>(queue.gathered);
  }

  static Pieces gather_remote(Queue& queue) {
    if (!*queue.items.front().pieces) return *queue.items.front().pieces;
    queue.gathered.clear();
    std::uint64_t bytes = 0;
    for (Item& item : queue.items) {
      if (!item.pieces || !*item.pieces || bytes >= kHashedBytes) break;
      if (!item.parts) {
        item.parts.emplace(queue.request, item.key, item.readers.back(), **item.pieces);
      }
      bytes += item.parts->take(kHashedBytes - bytes, queue.gathered);
      if (!item.parts->is_taken()) break;
      queue.gathered.push_back(item.parts->header());
      ++queue.sending;
    }
    return std::span<const iovec>(queue.gathered);
  }

  const Span span_;  // until the client has the bytes
  const std::shared_ptr<Queue> queue_;
  KeyQueue keys_;
  const Clock& clock_;
  const TimePoint hold_until_;
  const std::size_t count_;          // number of blocks
  std::vector<BlockReader> pinned_;  // moved from up to next_; empty once unpinned
  std::size_t next_ = 0;             // the block to fetch next
  std::size_t ahead_ = kFetchAhead;
};

// Only servers borrow blocks: a client's read must not cause others' blocks to be evicted first.
bool is_server(const Call& call) { return call.is_admin() || call.caller->role() == Role::peer; }

// The other server has the blocks under the same names only if this cache has them in that
// namespace.
Result<> check_remote_tier(const Cache& cache, std::string_view name_space) {
  const CacheConfig& config = cache.config();
  if (config.shared && shared_namespace(config) == name_space) return {};
  return Error{ErrorCode::state_conflict, "shared is '" + std::string(name_space) + "'; cache " +
                                              config.name + " is not shared in that namespace"};
}

Result<ReadRequest> read_request(const Service& service, const Call& call,
                                 std::shared_ptr<Cache> cache) {
  ReadRequest request{.cache = std::move(cache), .holder = call.holder(), .pins = call.pins()};
  Query query(call.head.query);
  const auto name_space = query.text("shared");
  request.shard = query.shard();
  if (name_space && request.shard) {
    query.refuse(ErrorCode::malformed,
                 "shared and shard are both given; servers read whole blocks of each other");
  }
  CAIRN_TRY(query.finish());
  if (name_space) CAIRN_TRY(check_remote_tier(*request.cache, *name_space));
  request.is_shared = name_space.has_value();
  request.is_lent = request.is_shared && is_server(call);
  std::size_t max_keys = service.manager.options().max_blocks_per_request;
  if (request.is_shared) max_keys = std::min(max_keys, kMaxShared);
  const KvGroupNames groups(request.cache->config());
  auto keys = read_body(call, max_values(service), [&](Fields& fields) {
    auto named = read_keys(fields, "keys", max_keys);
    request.kv_group = read_one_kv_group(fields, groups);
    return named;
  });
  if (!keys) return std::move(keys).error();
  const auto block_bytes = request.cache->part_bytes(request.kv_group, request.shard);
  if (!block_bytes) return block_bytes.error();
  request.block_bytes = *block_bytes;
  if (request.is_shared) {
    request.fingerprint = fingerprint_of(request.cache->config(), request.kv_group);
  }
  request.keys = in_group(std::move(*keys), request.kv_group);
  return request;
}

Result<std::vector<BlockReader>> pin_prefix(const ReadRequest& request) {
  if (!request.is_shared) {
    const std::vector<KeyView> views(request.keys.begin(), request.keys.end());
    return request.cache->read_prefix(views, request.holder, request.pins, request.shard);
  }
  std::vector<BlockReader> readers;
  for (const BlockKey& key : request.keys) {
    auto reader = read_one(request, key);
    if (!reader && reader.error().code == ErrorCode::lease_quota) return reader.error();
    if (!reader) break;
    readers.push_back(std::move(*reader));
  }
  return readers;
}

}  // namespace

void read_many(Service& service, const Call& call, std::shared_ptr<Cache> cache, Reply reply) {
  auto request = read_request(service, call, std::move(cache));
  if (!request) return reply.error(request.error());
  Span span = call.begin_span("read");
  span.set("cairn.keys", request->keys.size());
  auto pinned = pin_prefix(*request);
  if (!pinned) return reply.error(pinned.error());
  std::vector<BlockReader> readers = std::move(*pinned);
  std::array<std::uint64_t, kNumTiers> by_tier{};
  for (const BlockReader& reader : readers) ++by_tier[index_of(reader.handle().tier)];
  set_blocks(span, by_tier);
  span.set("cairn.bytes", readers.size() * request->block_bytes);

  http::Response response;
  response.content_type = kBytesType;
  response.headers = "Cairn-Matched: " + std::to_string(readers.size()) + "\r\n";
  if (!readers.empty()) {
    const std::uint64_t header_bytes = request->is_shared ? kRemoteHeaderBytes : 0;
    response.download_bytes = readers.size() * (header_bytes + request->block_bytes);
    const http::HttpServer* server = service.http.load();
    if (server == nullptr) {
      return reply.error({ErrorCode::unavailable, "the server is starting"});
    }
    const std::vector<BlockKey> keys = std::move(request->keys);
    const auto present = std::span(keys).first(readers.size());
    auto download = std::make_unique<PrefixDownload>(
        std::move(*request), server->bodies(), service.clock, std::move(readers), std::move(span));
    if (auto kept = download->keep(present); !kept) return reply.error(kept.error());
    response.download = std::move(download);
  }
  reply.send(std::move(response));
}

}  // namespace cairn::routes
