#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "server/codec/fields.hpp"
#include "server/codec/key_list.hpp"
#include "server/codec/kv_group_names.hpp"
#include "server/codec/media_type.hpp"
#include "server/codec/query.hpp"
#include "server/routes/reply.hpp"
#include "server/routes/service.hpp"

// Helpers shared by many routes.
namespace cairn::routes {

// The cache named in the path. Error: unknown_cache.
Result<std::shared_ptr<Cache>> cache_of(const Service& service, const Call& call);
// The key named in the path, after the cache.
Result<BlockKey> key_of(const Call& call);
// The block that the path names, of the group that the parameter `kv_group` names. Error:
// unknown_kv_group.
Result<BlockKey> block_key_of(const Call& call, const Cache& cache);
// Whether each key's block of each group is in the cache: one key's groups follow each other.
std::vector<bool> present_by_group(const Cache& cache, std::span<const BlockKey> keys);
// The blocks of these keys that are present, as present_by_group() says; of a key without one, the
// block of the first group.
std::vector<BlockKey> blocks_of_keys(std::span<const BlockKey> keys,
                                     const std::vector<bool>& present);
// The blocks of these keys, of that group. Without a group: of all groups that have a block of the
// key; of the first group for a key that no group has.
std::vector<BlockKey> blocks_of_keys(const Cache& cache, std::vector<BlockKey> keys,
                                     std::optional<KvGroupNumber> group);
// The format of a structured body. A missing body needs no content type.
Result<WireFormat> format_of(const Call& call);
// Parses a structured body.
Result<json> body_document(const Call& call, std::size_t max_values = kMaxDocumentValues);
// Parses a structured body and reads its Fields with `read`.
template <class Read>
auto read_body(const Call& call, std::size_t max_values, Read&& read)
    -> decltype(read_whole(json(), read)) {
  auto document = body_document(call, max_values);
  if (!document) return std::move(document).error();
  return read_whole(*document, read);
}
// Like read_body(), but a missing body counts as an empty object.
template <class Read>
auto read_optional_body(const Call& call, Read&& read) -> decltype(read_whole(json(), read)) {
  if (call.body.empty()) return read_whole(json::object(), read);
  return read_body(call, kMaxDocumentValues, read);
}
// The most values of a document that names as many blocks as a request may.
std::size_t max_values(const Service& service);
// The open file of that number, of those sent with the request. Errors: impossible if there is
// none; unavailable if the server had no room for it.
Result<PassedFiles::value_type> passed_file(const Call& call, std::string_view field,
                                            std::uint32_t number);
// "/v1/caches/NAME". A cache's name needs no escaping.
std::string cache_path(std::string_view name);
// Adds the id of the memory that the response's handles refer to. A client that has mapped a tier
// must map it again when the id changes.
void add_memory_id(Reply& reply, std::uint64_t memory_id);
// Error: unknown_tier if the cache does not have it.
Result<> check_tier(const Cache& cache, Tier tier);
// Error: forbidden if the caller lacks the role. For routes where only some requests need it.
Result<> check_role(const Call& call, Role role);
// Error: out_of_range if a request names more blocks than it may.
Result<> check_count(const Service& service, std::string_view field, std::size_t count);
// Keys of one length, end to end in the body, without a copy. Errors: wrong_length, out_of_range.
struct PackedKeys {
  std::uint64_t key_bytes = 0;
  std::size_t max_keys = 0;
};
Result<> borrow_keys(const Call& call, const PackedKeys& packed, KeyBuffer& out);
// The next_cursor of a list: a string, or null at the end.
ordered_json cursor_body(std::uint64_t next_cursor);
// The pin that `cache_control` asks for; each match restarts its time. nullopt if no block is
// within the bounds of pins: the blocks are stored all the same.
struct PinFor {
  std::span<const BlockKey> keys;
  std::uint32_t ttl_ms = 0;
  LeaseHolder holder = {};
};
std::optional<PinId> pin_for(Cache& cache, const PinFor& wanted);
// Adds the pin's id to the response.
void add_pin(Reply& reply, const std::optional<PinId>& pin);
// Errors: wrong_length for a shorter body or an unknown length; body_too_large for a longer one.
Result<> check_length(const http::RequestHead& head, std::uint64_t expected_bytes);

// Reads a hot request with `read`, which takes padded JSON. MessagePack, of at most `max_values`
// values, is converted to JSON first: few clients send it, and one reader keeps one set of rules.
template <class Read>
auto read_hot(const Call& call, std::size_t max_values, Read&& read) -> decltype(read(call.body)) {
  auto format = format_of(call);
  if (!format) return std::move(format).error();
  if (*format == WireFormat::text) return read(call.body);
  auto text = json_text_of(call.body, max_values);
  if (!text) return std::move(text).error();
  const std::size_t size = text->size();
  text->append(http::kBodyPadding, ' ');
  return read(std::as_bytes(std::span(*text)).first(size));
}

struct WhenEnded {
  TransferId id;
  std::uint32_t wait_ms = 0;
  unsigned status_unfinished = 200;  // while the transfer is in progress
  bool starts_it = false;            // this request starts it; a full queue is then an error
};

// Responds with the transfer's state when it has ended, or after the wait.
void answer_when_ended(Service& service, const WhenEnded& when, Reply reply);

// Adds the numbers of blocks by tier to a span.
void set_blocks(Span& span, const std::array<std::uint64_t, kNumTiers>& by_tier);
void set_blocks(Span& span, std::span<const BlockHandle> blocks);
// Lets the span of a traced request last until the transfer has ended, and adds what it did.
void end_with_transfer(const Service& service, TransferId id, Span span);

// Runs `work` on one of the threads. Responds with queue_full if too much is queued.
void answer_on(TaskThreads& threads, Reply reply, UniqueFunction<void(Reply&)> work);

}  // namespace cairn::routes
