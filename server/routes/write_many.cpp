#include <array>
#include <string>
#include <utility>
#include <vector>

#include "server/codec/answers.hpp"
#include "server/http/body_buffer.hpp"
#include "server/routes/common.hpp"
#include "server/routes/handlers.hpp"
#include "server/routes/problem.hpp"
#include "server/routes/write_batch.hpp"
#include "server/routes/write_header.hpp"

namespace cairn::routes {
namespace {

constexpr std::size_t kLengthBytes = 4;
// "{}" is the shortest header.
constexpr std::uint64_t kMinHeaderBytes = 2;

struct BatchBounds {
  std::uint64_t body_bytes = 0;  // exact
  std::uint32_t max_header_bytes = 0;
  std::size_t max_keys = 0;
  Ingest::Terms terms = {};
};

// The body: u32 header length, the JSON header, then the blocks.
class BatchUpload final : public http::Upload {
 public:
  BatchUpload(std::shared_ptr<Cache> cache, const BatchBounds& bounds, const Call& call,
              http::BodyMemory& memory)
      : cache_(std::move(cache)),
        bounds_(bounds),
        style_(call.style),
        span_(call.begin_span("write")),
        header_(memory) {}

  void next(UniqueFunction<void(Room)> ready) override {
    switch (reading_) {
      case Part::nothing:
        reading_ = Part::length;
        return ready(room_in(length_));
      case Part::length:
        if (auto right = take_length(); !right) return ready(std::move(right).error());
        reading_ = Part::header;
        return ready(header_room());
      case Part::header:
        header_.commit(piece_.iov_len);
        if (header_.size() < header_bytes_) return ready(header_room());
        if (auto right = take_header(); !right) return ready(std::move(right).error());
        reading_ = Part::blocks;
        return batch_->next(std::move(ready));
      case Part::blocks:
        return batch_->next(std::move(ready));
    }
  }

  void finish(http::Responder respond) override {
    Reply reply(std::move(respond), style_);
    if (reading_ == Part::header) {  // there are no blocks
      header_.commit(piece_.iov_len);
      if (auto right = take_header(); !right) return reply.error(right.error());
    }
    if (!batch_) {
      return reply.error({ErrorCode::wrong_length, "the body ends before its header does"});
    }
    batch_->finish(
        [cache = cache_, batch = batch_, reply = std::move(reply)](const Result<>& stored) mutable {
          if (!stored) return reply.error(stored.error());
          add_pin(reply, batch->pin());
          reply.text(200, text_of(*cache, batch->items()));
        });
  }

 private:
  enum class Part { nothing, length, header, blocks };  // the purpose of the last room

  std::span<const iovec> room_in(std::span<std::byte> memory) {
    piece_ = {memory.data(), memory.size()};
    return {&piece_, 1};
  }

  // Grows with the bytes that arrive: an announced length costs nothing.
  Room header_room() {
    const std::span<std::byte> room = header_.room(header_bytes_ - header_.size());
    if (room.empty()) {
      return Error{ErrorCode::unavailable, "the memory for requests' bodies is in use"};
    }
    return room_in(room);
  }

  Result<> take_length() {
    std::uint64_t size = 0;
    for (std::size_t i = kLengthBytes; i-- > 0;) {
      size = (size << 8) | std::to_integer<std::uint64_t>(length_[i]);
    }
    const std::uint64_t left_bytes = bounds_.body_bytes - kLengthBytes;
    if (size < kMinHeaderBytes || size > bounds_.max_header_bytes) {
      return Error{ErrorCode::out_of_range, "the header's length is " + std::to_string(size) +
                                                "; it takes " + std::to_string(kMinHeaderBytes) +
                                                " to " + std::to_string(bounds_.max_header_bytes)};
    }
    if (size > left_bytes) {
      return Error{ErrorCode::wrong_length, "the header's length is " + std::to_string(size) +
                                                "; the body has " + std::to_string(left_bytes) +
                                                " bytes left"};
    }
    header_bytes_ = static_cast<std::size_t>(size);
    return {};
  }

  Result<> take_header() {
    header_.settle();
    auto header =
        read_write_header(header_.data(), bounds_.max_keys, KvGroupNames(cache_->config()));
    if (!header) return std::move(header).error();
    if (header->tier) CAIRN_TRY(check_tier(*cache_, *header->tier));
    const auto block_bytes = cache_->part_bytes(header->kv_group, bounds_.terms.shard);
    if (!block_bytes) return block_bytes.error();
    const std::uint64_t expected_bytes =
        kLengthBytes + header_bytes_ + header->keys.size() * *block_bytes;
    if (bounds_.body_bytes != expected_bytes) {
      const bool shorter = bounds_.body_bytes < expected_bytes;
      return Error{shorter ? ErrorCode::wrong_length : ErrorCode::body_too_large,
                   "the body is " + std::to_string(bounds_.body_bytes) +
                       " bytes; with this header it must be " + std::to_string(expected_bytes)};
    }
    WriteBatch::Request request = batch_of(std::move(*header));
    request.block_bytes = *block_bytes;
    request.span = std::move(span_);
    auto batch = WriteBatch::open(cache_, std::move(request));
    if (!batch) return std::move(batch).error();
    batch_ = std::move(*batch);
    header_.clear();
    return {};
  }

  WriteBatch::Request batch_of(WriteHeader header) const {
    WriteBatch::Request request{.tier = header.tier.value_or(cache_->highest_tier()),
                                .metadata = std::exchange(header.each.metadata, {}),
                                .terms = bounds_.terms};
    request.terms.hint = std::move(header.hint);
    request.pin_ms = header.pin_ms;
    request.blocks.assign(header.keys.size(), header.each);
    for (std::size_t i = 0; i < header.keys.size(); ++i) {
      request.blocks[i].key = in_group(header.keys[i], header.kv_group);
      if (header.parents[i]) {
        request.blocks[i].parent = in_group(*header.parents[i], header.kv_group);
      }
    }
    return request;
  }

  static std::string text_of(const Cache& cache, const std::vector<Ingest::Item>& items) {
    std::vector<BlockKey> keys;
    std::vector<CommitStatus> statuses;
    for (const Ingest::Item& item : items) {
      keys.push_back(item.block.key);
      statuses.push_back(item.state == Ingest::State::committed ? CommitStatus::committed
                         : item.state == Ingest::State::pending ? CommitStatus::pending
                                                                : CommitStatus::duplicate);
    }
    return commit_text({.keys = keys, .statuses = statuses, .shards_of = [&cache](KeyView key) {
                          return cache.pending_shards(key);
                        }});
  }

  std::shared_ptr<Cache> cache_;
  const BatchBounds bounds_;
  ReplyStyle style_;
  Span span_;  // until the batch takes it
  Part reading_ = Part::nothing;
  std::array<std::byte, kLengthBytes> length_{};
  std::size_t header_bytes_ = 0;
  http::BodyBuffer header_;
  iovec piece_{};
  std::shared_ptr<WriteBatch> batch_;  // set at the end of the header
};

}  // namespace

Result<std::unique_ptr<http::Upload>> write_many_body(Service& service, const Call& call,
                                                      std::shared_ptr<Cache> cache) {
  const auto length = call.head.content_length;
  if (!length || *length < kLengthBytes + kMinHeaderBytes) {
    return Error{ErrorCode::wrong_length,
                 (length ? "the body is " + std::to_string(*length) + " bytes"
                         : std::string("the body's length is not given")) +
                     "; it must be a header's length in 4 bytes, the header and the blocks"};
  }
  const http::HttpServer* server = service.http.load();
  if (server == nullptr) return Error{ErrorCode::unavailable, "the server is starting"};
  Query query(call.head.query);
  const auto shard = query.shard();
  CAIRN_TRY(query.finish());
  const BlockManagerOptions& options = service.manager.options();
  const BatchBounds bounds{
      .body_bytes = *length,
      .max_header_bytes = service.limits.max_write_header_bytes,
      .max_keys = options.max_blocks_per_request,
      .terms = {
          .holder = call.holder(), .quota = call.quota(), .pins = call.pins(), .shard = shard}};
  return std::unique_ptr<http::Upload>(
      std::make_unique<BatchUpload>(std::move(cache), bounds, call, server->bodies()));
}

}  // namespace cairn::routes
