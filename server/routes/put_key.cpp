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
      answer(*cache, batch->items().front(), holder, reply);
    });
  }

 private:
  static void answer(Cache& cache, const Ingest::Item& item, const LeaseHolder& holder,
                     Reply& reply) {
    const BlockKey& key = item.block.key;
    if (item.state == Ingest::State::committed) {
      return reply.located(201, cache_path(cache.config().name) + "/keys/" + key_text(key),
                           stored_text(key, CommitStatus::committed, item.block.handle,
                                       KvGroupNames(cache.config())));
    }
    std::optional<BlockHandle> at = item.block.handle;
    if (item.state == Ingest::State::duplicate) {
      // Another client's block came first. It may be evicted again by now.
      const auto there = cache.read(key, std::nullopt, holder);
      at = there ? std::optional(there->handle()) : std::nullopt;
    }
    reply.text(200, stored_text(key, CommitStatus::duplicate, at, KvGroupNames(cache.config())));
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
  const KvGroupNumber group = read_one_kv_group(query, KvGroupNames(cache->config()));
  CAIRN_TRY(query.finish());
  block.key = in_group(block.key, group);
  if (block.parent) block.parent = in_group(*block.parent, group);
  CAIRN_TRY(check_tier(*cache, request.tier));
  CAIRN_TRY(check_length(call.head, cache->block_bytes(group)));
  request.metadata = std::exchange(block.metadata, {});
  request.blocks.push_back(std::move(block));
  auto batch = WriteBatch::open(cache, std::move(request));
  if (!batch) return std::move(batch).error();
  return std::unique_ptr<http::Upload>(
      std::make_unique<KeyUpload>(std::move(cache), std::move(*batch), call.holder(), call.style));
}

}  // namespace cairn::routes
