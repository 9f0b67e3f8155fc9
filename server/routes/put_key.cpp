#include "blockmgr/cache/held_lease.hpp"
#include "server/codec/answers.hpp"
#include "server/codec/ids.hpp"
#include "server/codec/requests.hpp"
#include "server/codec/reuse_hint.hpp"
#include "server/routes/common.hpp"
#include "server/routes/discard.hpp"
#include "server/routes/handlers.hpp"
#include "server/routes/problem.hpp"

namespace cairn::routes {
namespace {

struct Placement {
  CommitBlock block;  // all but the handle
  Tier tier = Tier::device;
  std::shared_ptr<BlockQuota> quota = {};
  std::shared_ptr<LeaseQuota> pins = {};
  LeaseHolder holder = {};
  RequestHint hint = {};
};

void answer_stored(const Cache& cache, KeyView key, CommitStatus status,
                   const std::optional<BlockHandle>& at, Reply& reply) {
  std::string body = stored_text(key, status, at);
  if (status == CommitStatus::duplicate) return reply.text(200, std::move(body));
  reply.located(201, cache_path(cache.config().name) + "/keys/" + key_text(key), std::move(body));
}

Result<BlockHandle> handle_of(Cache& cache, KeyView key, const LeaseHolder& holder) {
  const auto reader = cache.read(key, std::nullopt, holder);
  if (!reader) return reader.error();
  return reader->handle();
}

// The bytes of a key that is there already: read, so that the connection can go on, and dropped.
// The block is held until the answer, or it might say that there is what went meanwhile.
class DuplicateUpload final : public http::Upload {
 public:
  DuplicateUpload(std::shared_ptr<Cache> cache, const BlockKey& key, HeldLease held,
                  LeaseHolder holder, ReplyStyle style)
      : cache_(std::move(cache)),
        key_(key),
        left_bytes_(cache_->block_bytes()),
        held_(std::move(held)),
        holder_(std::move(holder)),
        style_(style) {}

  void next(UniqueFunction<void(Room)> ready) override {
    const auto room = discard_.room(left_bytes_);
    left_bytes_ -= room.front().iov_len;
    ready(room);
  }
  void finish(http::Responder respond) override {
    Reply reply(std::move(respond), style_);
    const auto at = handle_of(*cache_, key_, holder_);
    held_.release();
    // The lease may have run out, and the cache may be gone.
    if (!at) return reply.error(at.error());
    answer_stored(*cache_, key_, CommitStatus::duplicate, *at, reply);
  }

 private:
  std::shared_ptr<Cache> cache_;
  BlockKey key_;
  std::uint64_t left_bytes_;
  HeldLease held_;
  LeaseHolder holder_;
  ReplyStyle style_;
  DiscardRoom discard_;
};

// Allocates when the body begins, writes in place, commits when it has ended. The steps answer from
// other threads, when the upload may be gone: what they need is shared with them, and the lease
// ends with the last of them.
class KeyUpload final : public http::Upload {
 public:
  KeyUpload(std::shared_ptr<Cache> cache, const Placement& placement, std::uint32_t lease_ms,
            ReplyStyle style)
      : store_(std::make_shared<Store>()), style_(style) {
    store_->cache = std::move(cache);
    store_->placement = placement;
    store_->lease_ms = lease_ms;
  }

  // Once: the room is as long as the body.
  void next(UniqueFunction<void(Room)> ready) override {
    const AllocateRequest request{.count = 1,
                                  .tier = store_->placement.tier,
                                  .lease_ms = store_->lease_ms,
                                  .quota = store_->placement.quota,
                                  .pins = store_->placement.pins,
                                  .holder = store_->placement.holder};
    store_->cache->allocate(
        request, [store = store_, ready = std::move(ready)](Result<Allocation> allocation) mutable {
          if (!allocation) return ready(std::move(allocation).error());
          store->lease = HeldLease(store->cache, allocation->lease);
          store->handle = allocation->blocks.front();
          auto writer = store->cache->write({.lease = allocation->lease, .block = store->handle});
          if (!writer) return ready(std::move(writer).error());
          store->writer = std::move(*writer);
          store->writer->room(std::move(ready));
        });
  }

  void finish(http::Responder respond) override {
    store_->writer->finish(
        [store = store_, reply = Reply(std::move(respond), style_)](Result<> written) mutable {
          if (!written) return reply.error(written.error());
          commit(std::move(store), std::move(reply));
        });
  }

 private:
  struct Store {
    std::shared_ptr<Cache> cache;
    Placement placement;
    std::uint32_t lease_ms = 0;
    HeldLease lease;
    BlockHandle handle;
    std::optional<BlockWriter> writer;  // goes before the lease does
  };

  static void commit(std::shared_ptr<Store> store, Reply reply) {
    std::vector<CommitBlock> blocks = {store->placement.block};
    blocks[0].handle = store->handle;
    // All taken before the callback takes the store.
    Cache& cache = *store->cache;
    const LeaseId lease = store->lease.id();
    const RequestHint hint = store->placement.hint;
    // The lease ends before the answer: a client that has it finds nothing pinned.
    cache.commit(lease, std::move(blocks),
                 [store = std::move(store),
                  reply = std::move(reply)](Result<std::vector<CommitStatus>> statuses) mutable {
                   if (!statuses) {
                     store->lease.release();
                     return reply.error(statuses.error());
                   }
                   store->lease.keep();
                   const CommitStatus status = statuses->front();
                   const BlockKey& key = store->placement.block.key;
                   std::optional<BlockHandle> at = store->handle;
                   if (status == CommitStatus::duplicate) {
                     // It may be gone again by now.
                     const auto there = handle_of(*store->cache, key, store->placement.holder);
                     at = there ? std::optional(*there) : std::nullopt;
                   }
                   answer_stored(*store->cache, key, status, at, reply);
                 },
                 {.release = true, .hint = hint});
  }

  std::shared_ptr<Store> store_;
  ReplyStyle style_;
};

void read_options(Query& query, CommitBlock& out) {
  out.parent = query.key("parent");
  out.ttl_ms = query.number("ttl_ms", {1, kMaxTtlMs});
  if (const auto priority = query.number("priority", kPriorities)) {
    out.priority = static_cast<std::uint8_t>(*priority);
  }
  out.metadata = query.object("metadata").value_or("");
  out.refuse_duplicate = query.word("if_exists", kIfExistsWords) == 1U;
}

}  // namespace

Result<std::unique_ptr<http::Upload>> put_key_body(Service& service, const Call& call,
                                                   std::shared_ptr<Cache> cache) {
  auto key = key_of(call);
  if (!key) return std::move(key).error();
  Query query(call.head.query);
  Placement placement;
  placement.tier = query.tier("tier").value_or(cache->highest_tier());
  placement.quota = call.quota();
  placement.pins = call.pins();
  placement.holder = call.holder();
  placement.block.key = *key;
  read_options(query, placement.block);
  placement.hint = read_hint(query);
  CAIRN_TRY(query.finish());
  CAIRN_TRY(check_tier(*cache, placement.tier));
  const std::uint64_t block_bytes = cache->block_bytes();
  CAIRN_TRY(check_length(call.head, block_bytes));

  // However slow the client is, the time-out of its body comes first: the lease only has to end if
  // this process forgets it.
  const std::uint32_t lease_ms = service.manager.options().max_lease_ms;
  const KeyView view = *key;
  auto held = cache->hold(
      {&view, 1},
      {.lease_ms = lease_ms, .holder = call.holder(), .hint = placement.hint, .pins = call.pins()});
  if (!held) return std::move(held).error();
  std::unique_ptr<http::Upload> upload;
  if (held->lease) {
    HeldLease guard(*cache, *held->lease);
    if (placement.block.refuse_duplicate) return key_exists(*key);
    upload = std::make_unique<DuplicateUpload>(std::move(cache), *key, std::move(guard),
                                               call.holder(), call.style);
  } else {
    upload = std::make_unique<KeyUpload>(std::move(cache), placement, lease_ms, call.style);
  }
  return upload;
}

}  // namespace cairn::routes
