#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/codec/fields.hpp"
#include "server/codec/key_list.hpp"
#include "server/codec/media_type.hpp"
#include "server/codec/query.hpp"
#include "server/routes/reply.hpp"
#include "server/routes/service.hpp"

// What many routes do alike.
namespace cairn::routes {

// The cache that the path names. unknown_cache.
Result<std::shared_ptr<Cache>> cache_of(const Service& service, const Call& call);
// The key that the path names, after the cache.
Result<BlockKey> key_of(const Call& call);
// The format of a structured body; without a body no type is asked for.
Result<WireFormat> format_of(const Call& call);
// A structured body as a document.
Result<json> body_document(const Call& call, std::size_t max_values = kMaxDocumentValues);
// A structured body, as `read` takes it from its Fields.
template <class Read>
auto read_body(const Call& call, std::size_t max_values, Read&& read)
    -> decltype(read_whole(json(), read)) {
  auto document = body_document(call, max_values);
  if (!document) return std::move(document).error();
  return read_whole(*document, read);
}
// The same of one that may be left out, as if it were an empty object.
template <class Read>
auto read_optional_body(const Call& call, Read&& read) -> decltype(read_whole(json(), read)) {
  if (call.body.empty()) return read_whole(json::object(), read);
  return read_body(call, kMaxDocumentValues, read);
}
// The most values of a document that names as many blocks as a request may.
std::size_t max_values(const Service& service);
// The open file of that number among those that came along with the request.
Result<PassedFiles::value_type> passed_file(const Call& call, std::string_view field,
                                            std::uint32_t number);
// "/v1/caches/NAME". A cache's name needs no escaping.
std::string cache_path(std::string_view name);
// The answer tells which memory its handles are of: who has mapped a tier maps it again where that
// is another.
void tell_memory(Reply& reply, std::uint64_t memory_id);
// unknown_tier unless the cache has it.
Result<> check_tier(const Cache& cache, Tier tier);
// forbidden unless the caller has the role: for what only some requests of a route do.
Result<> check_role(const Call& call, Role role);
// out_of_range where a request names more blocks than one may.
Result<> check_count(const Service& service, std::string_view field, std::size_t count);
// What a list answers as next_cursor: a string, or null where there is no more.
ordered_json cursor_body(std::uint64_t next_cursor);
// wrong_length for a shorter body (or one of unknown length), body_too_large for a longer one.
Result<> check_length(const http::RequestHead& head, std::uint64_t expected_bytes);

// Reads a hot request with `read`, which takes padded JSON. MessagePack, of at most so many values,
// becomes JSON first: few send it, and one reader has one set of rules.
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
  unsigned status_unfinished = 200;  // what a transfer that goes on is answered with
  bool starts_it = false;            // one that a full queue kept from beginning is then refused
};

// Answers with the transfer's state once it has ended, or after the wait.
void answer_when_ended(Service& service, const WhenEnded& when, Reply reply);

// Hands work and its answer to such a thread; queue_full is answered where it has too much.
void answer_on(TaskThreads& threads, Reply reply, UniqueFunction<void(Reply&)> work);

}  // namespace cairn::routes
