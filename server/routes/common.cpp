#include "server/routes/common.hpp"

#include "base/hex.hpp"
#include "blockmgr/index/cache_name.hpp"
#include "server/codec/ids.hpp"

namespace cairn::routes {

Result<std::shared_ptr<Cache>> cache_of(const Service& service, const Call& call) {
  const std::string_view name = call.path[0];
  if (!is_cache_name(name)) {
    return Error{ErrorCode::unknown_cache,
                 "there can be no cache of that name: " + std::string(kCacheNameRule)};
  }
  return service.manager.find_cache(name);
}

Result<BlockKey> key_of(const Call& call) { return key_from(call.path[1], "the key in the path"); }

Result<BlockKey> block_key_of(const Call& call, const Cache& cache) {
  auto key = key_of(call);
  if (!key) return key;
  Query query(call.head.query);
  const KvGroupNumber group = read_one_kv_group(query, KvGroupNames(cache.config()));
  CAIRN_TRY(query.finish());
  return in_group(*key, group);
}

std::vector<bool> present_by_group(const Cache& cache, std::span<const BlockKey> keys) {
  const std::size_t groups = cache.config().kv_group_count();
  std::vector<KeyView> all;
  all.reserve(keys.size() * groups);
  for (const BlockKey& key : keys) {
    for (std::size_t i = 0; i < groups; ++i) {
      all.push_back(key.view().in(static_cast<KvGroupNumber>(i)));
    }
  }
  return cache.contains(all);
}

std::vector<BlockKey> blocks_of_keys(std::span<const BlockKey> keys,
                                     const std::vector<bool>& present) {
  std::vector<BlockKey> blocks;
  if (keys.empty()) return blocks;
  const std::size_t groups = present.size() / keys.size();
  auto is_present = present.begin();
  for (const BlockKey& key : keys) {
    const std::size_t before = blocks.size();
    for (std::size_t i = 0; i < groups; ++i) {
      if (*is_present++) blocks.emplace_back(key.view().in(static_cast<KvGroupNumber>(i)));
    }
    if (blocks.size() == before) blocks.emplace_back(key.view().in(0));
  }
  return blocks;
}

std::vector<BlockKey> blocks_of_keys(const Cache& cache, std::vector<BlockKey> keys,
                                     std::optional<KvGroupNumber> group) {
  if (group || cache.config().kv_group_count() == 1) {
    return in_group(std::move(keys), group.value_or(0));
  }
  return blocks_of_keys(keys, present_by_group(cache, keys));
}

std::string cache_path(std::string_view name) { return std::string("/v1/caches/").append(name); }

std::size_t max_values(const Service& service) {
  return max_document_values(service.manager.options().max_blocks_per_request);
}

Result<WireFormat> format_of(const Call& call) {
  if (call.body.empty()) return WireFormat::text;
  return body_format(call.head.content_type);
}

Result<json> body_document(const Call& call, std::size_t max_values) {
  auto format = format_of(call);
  if (!format) return std::move(format).error();
  return parse_document(call.body, *format, max_values);
}

Result<PassedFiles::value_type> passed_file(const Call& call, std::string_view field,
                                            std::uint32_t number) {
  if (number < call.files.size()) return call.files[number];
  if (call.files_refused) {
    return Error{ErrorCode::unavailable,
                 "the server has no room for more open files of its clients"};
  }
  return Error{ErrorCode::impossible,
               std::string(field) + " is " + std::to_string(number) + ", and " +
                   std::to_string(call.files.size()) +
                   " open files came with the request; they are passed over the server's Unix "
                   "socket only (--unix), by a process of the server's user"};
}

void add_memory_id(Reply& reply, std::uint64_t memory_id) {
  reply.add_header("Cairn-Memory", to_hex(std::as_bytes(std::span(&memory_id, 1))));
}

Result<> check_tier(const Cache& cache, Tier tier) {
  if (cache.config().tiers[index_of(tier)]) return {};
  return Error{ErrorCode::unknown_tier, "cache '" + cache.config().name + "' has no tier '" +
                                            std::string(to_string(tier)) + "'"};
}

Result<> check_role(const Call& call, Role role) {
  if (call.caller == nullptr || call.caller->may(role)) return {};
  return lacks_role(*call.caller, role);
}

Result<> check_count(const Service& service, std::string_view field, std::size_t count) {
  const std::size_t most = service.manager.options().max_blocks_per_request;
  if (count <= most) return {};
  return Error{ErrorCode::out_of_range, std::string(field) + " has " + std::to_string(count) +
                                            " elements; it takes at most " + std::to_string(most)};
}

Result<> borrow_keys(const Call& call, const PackedKeys& packed, KeyBuffer& out) {
  const std::uint64_t key_bytes = packed.key_bytes;
  if (call.body.size() % key_bytes != 0) {
    return Error{ErrorCode::wrong_length, "the body is " + std::to_string(call.body.size()) +
                                              " bytes, not a multiple of key_bytes, which is " +
                                              std::to_string(key_bytes)};
  }
  const std::size_t count = call.body.size() / key_bytes;
  if (count > packed.max_keys) {
    return Error{ErrorCode::out_of_range, "keys has " + std::to_string(count) +
                                              " elements; it takes at most " +
                                              std::to_string(packed.max_keys)};
  }
  out.borrow(call.body, key_bytes);
  return {};
}

ordered_json cursor_body(std::uint64_t next_cursor) {
  if (next_cursor == 0) return nullptr;
  return std::to_string(next_cursor);
}

std::optional<PinId> pin_for(Cache& cache, const PinFor& wanted) {
  const auto pinned = cache.pin({.keys = wanted.keys,
                                 .ttl_ms = wanted.ttl_ms,
                                 .refresh_on_hit = true,
                                 .holder = wanted.holder});
  return pinned ? pinned->pin : std::nullopt;
}

void add_pin(Reply& reply, const std::optional<PinId>& pin) {
  if (pin) reply.add_header("Cairn-Pin", pin_text(*pin));
}

Result<> check_length(const http::RequestHead& head, std::uint64_t expected_bytes) {
  const std::string expected = std::to_string(expected_bytes) + " bytes";
  if (!head.content_length) {
    return Error{ErrorCode::wrong_length,
                 "the body's length is not given; Content-Length must be " + expected};
  }
  if (*head.content_length == expected_bytes) return {};
  const bool shorter = *head.content_length < expected_bytes;
  return Error{
      shorter ? ErrorCode::wrong_length : ErrorCode::body_too_large,
      "the body is " + std::to_string(*head.content_length) + " bytes; it must be " + expected};
}

void answer_on(TaskThreads& threads, Reply reply, UniqueFunction<void(Reply&)> work) {
  // Shared, so that it can still respond if the queue is full.
  auto shared = std::make_shared<Reply>(std::move(reply));
  const bool posted =
      threads.try_post([shared, work = std::move(work)]() mutable { work(*shared); });
  if (!posted) {
    shared->error({ErrorCode::queue_full, "too many requests of this kind wait; ask again later"});
  }
}

void set_blocks(Span& span, const std::array<std::uint64_t, kNumTiers>& by_tier) {
  constexpr std::array<std::string_view, kNumTiers> kNames = {
      "cairn.blocks.device", "cairn.blocks.pinned", "cairn.blocks.disk"};
  for (const Tier tier : kTiers) {
    if (by_tier[index_of(tier)] > 0) span.set(kNames[index_of(tier)], by_tier[index_of(tier)]);
  }
}

void set_blocks(Span& span, std::span<const BlockHandle> blocks) {
  if (!span) return;
  std::array<std::uint64_t, kNumTiers> by_tier{};
  for (const BlockHandle& block : blocks) ++by_tier[index_of(block.tier)];
  set_blocks(span, by_tier);
}

}  // namespace cairn::routes
