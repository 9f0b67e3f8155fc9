#include "server/codec/action_body.hpp"
#include "server/codec/answers.hpp"
#include "server/codec/ids.hpp"
#include "server/codec/requests.hpp"
#include "server/codec/reuse_hint_body.hpp"
#include "server/routes/common.hpp"
#include "server/routes/handlers.hpp"
#include "server/routes/problem.hpp"
#include "server/routes/write_batch.hpp"

namespace cairn::routes {
namespace {

// Receives the bytes of one block. If the key is already stored, reads and drops them, so that the
// connection stays usable.
class KeyUpload final : public http::Upload {
 public:
  KeyUpload(std::shared_ptr<Cache> cache, std::shared_ptr<WriteBatch> batch, LeaseHolder holder,
            ReplyStyle style)
      : cache_(std::move(cache)),
        batch_(std::move(batch)),
        holder_(std::move(holder)),
        style_(style) {}

  void next(UniqueFunction<void(Room)> ready) override { batch_->next(std::move(ready)); }
  void finish(http::Responder respond) override {
    batch_->finish([cache = cache_, batch = batch_, holder = holder_,
                    reply = Reply(std::move(respond), style_)](const Result<>& stored) mutable {
      if (!stored) return reply.error(stored.error());
      add_pin(reply, batch->pin());
      answer(*cache, batch->items().front(), holder, reply);
    });
  }

 private:
  static void answer(Cache& cache, const Ingest::Item& item, const LeaseHolder& holder,
                     Reply& reply) {
    const BlockKey& key = item.block.key;
    const bool pending = item.state == Ingest::State::pending;
    if (pending || item.state == Ingest::State::committed) {
      const bool whole = !pending && !item.block.shard;
      return reply.located(
          201, cache_path(cache.config().name) + "/keys/" + key_text(key),
          stored_text(
              {.key = key,
               .status = pending ? CommitStatus::pending : CommitStatus::committed,
               .at = whole ? std::optional(item.block.handle) : std::nullopt,
               .shards = pending ? cache.pending_shards(key) : std::vector<std::uint32_t>{}},
              KvGroupNames(cache.config())));
    }
    std::optional<BlockHandle> at;
    if (item.state == Ingest::State::present) at = item.block.handle;
    if (item.state == Ingest::State::duplicate) {
      // Another client's block came first. It may be evicted again by now.
      const auto there = cache.read(key, std::nullopt, holder);
      at = there ? std::optional(there->handle()) : std::nullopt;
    }
    reply.text(200, stored_text({.key = key,
                                 .status = CommitStatus::duplicate,
                                 .at = at,
                                 .shards = cache.pending_shards(key)},
                                KvGroupNames(cache.config())));
  }

  std::shared_ptr<Cache> cache_;
  std::shared_ptr<WriteBatch> batch_;
  LeaseHolder holder_;
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

Result<std::unique_ptr<http::Upload>> put_key_body(Service&, const Call& call,
                                                   std::shared_ptr<Cache> cache) {
  auto key = key_of(call);
  if (!key) return std::move(key).error();
  Query query(call.head.query);
  CommitBlock block{.handle = {}, .key = *key};
  WriteBatch::Request request{
      .tier = query.tier("tier").value_or(cache->highest_tier()),
      .terms = {.holder = call.holder(), .quota = call.quota(), .pins = call.pins()}};
  read_options(query, block);
  request.terms.hint = read_hint(query);
  request.pin_ms = read_cache_control(query);
  request.terms.shard = query.shard();
  const KvGroupNumber group = read_one_kv_group(query, KvGroupNames(cache->config()));
  CAIRN_TRY(query.finish());
  block.key = in_group(block.key, group);
  if (block.parent) block.parent = in_group(*block.parent, group);
  CAIRN_TRY(check_tier(*cache, request.tier));
  const auto part_bytes = cache->part_bytes(group, request.terms.shard);
  if (!part_bytes) return part_bytes.error();
  CAIRN_TRY(check_length(call.head, *part_bytes));
  request.block_bytes = *part_bytes;
  request.metadata = std::exchange(block.metadata, {});
  request.blocks.push_back(std::move(block));
  request.span = call.begin_span("write");
  auto batch = WriteBatch::open(cache, std::move(request));
  if (!batch) return std::move(batch).error();
  return std::unique_ptr<http::Upload>(
      std::make_unique<KeyUpload>(std::move(cache), std::move(*batch), call.holder(), call.style));
}

}  // namespace cairn::routes
