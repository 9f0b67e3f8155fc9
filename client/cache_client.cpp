#include "client/cache_client.hpp"

#include <array>
#include <charconv>

#include "base/hex.hpp"
#include "client/http_wire.hpp"

namespace cairn::client {
namespace {

using nlohmann::json;

constexpr HttpHeader kJsonBody{"Content-Type", "application/json"};
constexpr HttpHeader kBytesBody{"Content-Type", "application/octet-stream"};
// A longer Retry-After is cut to this.
constexpr std::uint32_t kMaxRetryAfterSeconds = 3600;

std::string cache_path(std::string_view cache, std::string_view rest = "") {
  return std::string("/v1/caches/").append(percent_encoded(cache)).append(rest);
}

std::string key_path(std::string_view cache, std::span<const std::byte> key) {
  return cache_path(cache, "/keys/") + to_hex(key);
}

std::string lease_path(std::string_view lease, std::string_view rest = "") {
  return std::string("/v1/leases/").append(percent_encoded(lease)).append(rest);
}

std::uint32_t retry_after_ms(const HttpResponse& response) {
  const std::string_view text = response.header("Retry-After");
  std::uint32_t seconds = 0;
  std::from_chars(text.data(), text.data() + text.size(), seconds);
  return std::min(seconds, kMaxRetryAfterSeconds) * 1000;
}

}  // namespace

CacheClient::CacheClient(Endpoint endpoint, HttpOptions options)
    : http_(std::move(endpoint), std::move(options)) {}

Answer<HttpResponse> CacheClient::send(const HttpRequest& request,
                                       std::span<const std::span<std::byte>> room) {
  auto response = http_.request(request, room);
  if (!response || response->status / 100 == 2) return response;
  ClientError error = problem_from(response->status, response->body);
  error.retry_after_ms = retry_after_ms(*response);
  return error;
}

Answer<json> CacheClient::call(std::string_view method, std::string_view target,
                               const std::optional<json>& body) {
  const std::string text = body ? body->dump() : std::string();
  const auto bytes = std::as_bytes(std::span(text));
  HttpRequest request{.method = method, .target = target};
  if (body) {
    request.headers = {&kJsonBody, 1};
    request.body = {&bytes, 1};
  }
  auto response = send(request);
  if (!response) return std::move(response).error();
  if (response->body.empty()) return json(nullptr);
  return json_from(response->body);
}

Answer<> CacheClient::stream(std::string_view target,
                             const std::function<bool(std::string_view)>& take) {
  const auto response = send({.method = "GET", .target = target, .take_text = &take});
  if (!response) return response.error();
  return {};
}

Answer<CacheClient::PutCacheResult> CacheClient::put_cache(std::string_view cache,
                                                           const json& body) {
  const std::string text = body.dump();
  const auto bytes = std::as_bytes(std::span(text));
  auto response = send({.method = "PUT",
                        .target = cache_path(cache),
                        .headers = {&kJsonBody, 1},
                        .body = {&bytes, 1}});
  if (!response) return std::move(response).error();
  auto description = json_from(response->body);
  if (!description) return std::move(description).error();
  return PutCacheResult{response->status == 201, std::move(*description)};
}

Answer<json> CacheClient::get_cache(std::string_view cache) {
  return call("GET", cache_path(cache));
}

Answer<> CacheClient::delete_cache(std::string_view cache, bool force) {
  auto gone = call("DELETE", cache_path(cache, force ? "?force=true" : ""));
  if (!gone) return std::move(gone).error();
  return {};
}

Answer<CacheClient::ExportedTier> CacheClient::export_tier(std::string_view cache, Tier tier) {
  const std::string target = cache_path(cache, "/tiers/").append(to_string(tier)).append("/export");
  auto response = send({.method = "POST", .target = target});
  if (!response) return std::move(response).error();
  auto description = json_from(response->body);
  if (!description) return std::move(description).error();
  ExportedTier exported{.description = std::move(*description), .file = nullptr};
  const auto number = exported.description.find("descriptor");
  if (number == exported.description.end()) return exported;
  if (!number->is_number_unsigned() || *number >= response->files.size()) {
    return ClientError{200, kBadAnswer, "the response lacks the open file of the tier's memory"};
  }
  exported.file = response->files[number->get<std::size_t>()];
  return exported;
}

Answer<json> CacheClient::match_packed(std::string_view cache, KeyList keys,
                                       std::uint64_t lease_ms) {
  const std::string target = cache_path(cache, "/match?key_bytes=")
                                 .append(std::to_string(keys.key_bytes()))
                                 .append("&lease_ms=")
                                 .append(std::to_string(lease_ms));
  const auto bytes = keys.bytes();
  auto response =
      send({.method = "POST", .target = target, .headers = {&kBytesBody, 1}, .body = {&bytes, 1}});
  if (!response) return std::move(response).error();
  return json_from(response->body);
}

Answer<Match> CacheClient::match(std::string_view cache, KeyList keys, std::uint64_t lease_ms) {
  auto answer = match_packed(cache, keys, lease_ms);
  if (!answer) return std::move(answer).error();
  return match_from(*answer, keys);
}

Answer<GroupMatch> CacheClient::match_groups(std::string_view cache, KeyList keys,
                                             std::uint64_t lease_ms) {
  auto answer = match_packed(cache, keys, lease_ms);
  if (!answer) return std::move(answer).error();
  return group_match_from(*answer);
}

Answer<Match> CacheClient::match_json(std::string_view cache, KeyList keys,
                                      std::uint64_t lease_ms) {
  auto answer = call("POST", cache_path(cache, "/match"),
                     json{{"keys", hex_list(keys)}, {"lease_ms", lease_ms}});
  if (!answer) return std::move(answer).error();
  return match_from(*answer, keys);
}

Answer<Allocation> CacheClient::allocate(std::string_view cache, const AllocateRequest& request) {
  json body = {{"tier", to_string(request.tier)}, {"lease_ms", request.lease_ms}};
  if (request.group_counts.empty()) body["count"] = request.count;
  for (const auto& [group, count] : request.group_counts) body["counts"][group] = count;
  auto answer = call("POST", cache_path(cache, "/allocate"), body);
  if (!answer) return std::move(answer).error();
  return allocation_from(*answer);
}

Answer<> CacheClient::write_slot(std::string_view cache, const BlockHandle& handle,
                                 std::string_view lease, std::span<const std::byte> bytes) {
  std::string target = cache_path(cache, "/slots/")
                           .append(to_string(handle.tier))
                           .append("/")
                           .append(std::to_string(handle.slot))
                           .append("/data?generation=")
                           .append(std::to_string(handle.generation))
                           .append("&lease=")
                           .append(percent_encoded(lease));
  if (!handle.kv_group.empty()) {
    target.append("&kv_group=").append(percent_encoded(handle.kv_group));
  }
  auto response =
      send({.method = "PUT", .target = target, .headers = {&kBytesBody, 1}, .body = {&bytes, 1}});
  if (!response) return std::move(response).error();
  return {};
}

Answer<std::vector<StoreStatus>> CacheClient::commit(std::string_view cache, std::string_view lease,
                                                     std::span<const CommitBlock> blocks) {
  json list = json::array();
  for (const CommitBlock& block : blocks) {
    json one = json_of(block.handle);
    one["key"] = to_hex(block.key);
    if (!block.parent.empty()) one["parent"] = to_hex(block.parent);
    list.push_back(std::move(one));
  }
  auto answer = call("POST", cache_path(cache, "/commit"),
                     json{{"lease", lease}, {"blocks", std::move(list)}});
  if (!answer) return std::move(answer).error();
  return statuses_from(*answer, blocks.size());
}

Answer<std::int64_t> CacheClient::renew_lease(std::string_view lease, std::uint64_t lease_ms) {
  auto answer = call("POST", lease_path(lease, "/renew"), json{{"lease_ms", lease_ms}});
  if (!answer) return std::move(answer).error();
  return field_from<std::int64_t>(*answer, "expires_at_ms");
}

Answer<> CacheClient::release_blocks(std::string_view lease, std::span<const BlockHandle> blocks) {
  json list = json::array();
  for (const BlockHandle& block : blocks) list.push_back(json_of(block));
  auto answer = call("POST", lease_path(lease, "/release"), json{{"blocks", std::move(list)}});
  if (!answer) return std::move(answer).error();
  return {};
}

Answer<> CacheClient::end_request(std::string_view lease, const RequestEnd& end) {
  json body = json::object();
  if (end.input_tokens) body["input_tokens"] = *end.input_tokens;
  if (end.output_tokens) body["output_tokens"] = *end.output_tokens;
  if (!end.reuse.empty()) body["reuse"] = end.reuse;
  if (end.within_ms) body["reuse"] = {{"within_ms", *end.within_ms}};
  auto answer = call("POST", lease_path(lease, "/release"), body);
  if (!answer) return std::move(answer).error();
  return {};
}

Answer<> CacheClient::end_lease(std::string_view lease) {
  auto answer = call("DELETE", lease_path(lease));
  if (!answer) return std::move(answer).error();
  return {};
}

Answer<std::size_t> CacheClient::read(std::string_view cache, KeyList keys,
                                      std::span<std::byte> room, std::string_view kv_group) {
  json asked = {{"keys", hex_list(keys)}};
  if (!kv_group.empty()) asked["kv_group"] = kv_group;
  const std::string text = asked.dump();
  const auto bytes = std::as_bytes(std::span(text));
  auto response = send({.method = "POST",
                        .target = cache_path(cache, "/read"),
                        .headers = {&kJsonBody, 1},
                        .body = {&bytes, 1}},
                       {&room, 1});
  if (!response) return std::move(response).error();
  const std::string_view matched = response->header("Cairn-Matched");
  std::size_t count = 0;
  const auto parsed = std::from_chars(matched.data(), matched.data() + matched.size(), count);
  if (parsed.ec != std::errc() || count > keys.size()) {
    return ClientError{0, kBadAnswer, "Cairn-Matched is '" + std::string(matched) + "'"};
  }
  if (keys.size() > 0 && response->room_bytes != room.size() / keys.size() * count) {
    return ClientError{
        0, kBadAnswer,
        std::to_string(response->room_bytes) + " bytes for " + std::to_string(count) + " blocks"};
  }
  return count;
}

Answer<std::vector<StoreStatus>> CacheClient::write(std::string_view cache,
                                                    const WriteRequest& request) {
  json header{{"keys", hex_list(request.keys)}};
  if (!request.parent.empty()) header["parents"] = parent_list(request.keys, request.parent);
  if (request.tier) header["tier"] = to_string(*request.tier);
  if (!request.kv_group.empty()) header["kv_group"] = request.kv_group;
  const std::string text = header.dump();
  std::array<std::byte, 4> length{};
  for (std::size_t i = 0; i < length.size(); ++i) {
    length[i] = static_cast<std::byte>((text.size() >> (8 * i)) & 0xFFU);
  }
  const std::array<std::span<const std::byte>, 3> pieces = {length, std::as_bytes(std::span(text)),
                                                            request.blocks};
  auto response = send({.method = "POST",
                        .target = cache_path(cache, "/write"),
                        .headers = {&kBytesBody, 1},
                        .body = pieces});
  if (!response) return std::move(response).error();
  auto answer = json_from(response->body);
  if (!answer) return std::move(answer).error();
  return statuses_from(*answer, request.keys.size());
}

Answer<StoreStatus> CacheClient::put_key(std::string_view cache, std::span<const std::byte> key,
                                         std::span<const std::byte> bytes,
                                         const PutKeyOptions& options) {
  std::string query;
  const auto add = [&query](std::string_view name, std::string_view value) {
    query.append(query.empty() ? "?" : "&").append(name).append("=").append(value);
  };
  if (!options.parent.empty()) add("parent", to_hex(options.parent));
  if (options.tier) add("tier", to_string(*options.tier));
  if (options.ttl_ms > 0) add("ttl_ms", std::to_string(options.ttl_ms));
  auto response = send({.method = "PUT",
                        .target = key_path(cache, key) + query,
                        .headers = {&kBytesBody, 1},
                        .body = {&bytes, 1}});
  if (!response) return std::move(response).error();
  return response->status == 201 ? StoreStatus::committed : StoreStatus::duplicate;
}

Answer<Tier> CacheClient::get_key(std::string_view cache, std::span<const std::byte> key,
                                  std::span<std::byte> room, std::string_view kv_group) {
  std::string target = key_path(cache, key);
  if (!kv_group.empty()) target.append("?kv_group=").append(percent_encoded(kv_group));
  auto response = send({.target = target}, {&room, 1});
  if (!response) return std::move(response).error();
  const std::string_view name = response->header("Cairn-Tier");
  const auto tier = tier_from(name);
  if (!tier) return ClientError{0, kBadAnswer, "Cairn-Tier is '" + std::string(name) + "'"};
  if (response->room_bytes != room.size()) {
    return ClientError{0, kBadAnswer,
                       std::to_string(response->room_bytes) + " bytes of a block of " +
                           std::to_string(room.size())};
  }
  return *tier;
}

Answer<> CacheClient::delete_key(std::string_view cache, std::span<const std::byte> key) {
  auto answer = call("DELETE", key_path(cache, key));
  if (!answer) return std::move(answer).error();
  return {};
}

Answer<Transfer> CacheClient::start_transfer(std::string_view cache,
                                             const TransferRequest& request) {
  auto answer = call("POST", cache_path(cache, "/transfers"),
                     json{{"keys", hex_list(request.keys)},
                          {"to", to_string(request.to)},
                          {"mode", request.move ? "move" : "copy"},
                          {"wait_ms", request.wait_ms}});
  if (!answer) return std::move(answer).error();
  return transfer_from(*answer);
}

Answer<Transfer> CacheClient::get_transfer(std::string_view id, std::uint64_t wait_ms) {
  auto answer =
      call("GET", "/v1/transfers/" + percent_encoded(id) + "?wait_ms=" + std::to_string(wait_ms));
  if (!answer) return std::move(answer).error();
  return transfer_from(*answer);
}

Answer<Metrics> CacheClient::metrics() {
  auto response = send({.target = "/metrics"});
  if (!response) return std::move(response).error();
  return Metrics::parse(response->body);
}

}  // namespace cairn::client
