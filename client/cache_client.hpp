#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/answer.hpp"
#include "client/blocks.hpp"
#include "client/http_client.hpp"
#include "client/metrics_text.hpp"

namespace cairn::client {

// The HTTP contract as typed calls on one connection. An answer that is no 2xx is a ClientError.
// Blocking; one thread at a time.
class CacheClient {
 public:
  explicit CacheClient(Endpoint endpoint, HttpOptions options = {});

  // Any route with a JSON body or none; the answer's JSON, null where it has no body.
  Answer<nlohmann::json> call(std::string_view method, std::string_view target,
                              const std::optional<nlohmann::json>& body = std::nullopt);

  struct PutCacheResult {
    bool created = false;        // false: it was there with the same shape
    nlohmann::json description;  // as answered
  };
  Answer<PutCacheResult> put_cache(std::string_view cache, const nlohmann::json& body);
  Answer<nlohmann::json> get_cache(std::string_view cache);
  Answer<> delete_cache(std::string_view cache, bool force);

  // How a tier's memory is mapped. Over a Unix socket the open file of its memory comes along;
  // else, and where it has none, null.
  struct ExportedTier {
    nlohmann::json description;
    std::shared_ptr<const FileDescriptor> file;
  };
  Answer<ExportedTier> export_tier(std::string_view cache, Tier tier);

  // The packed form: the keys as they are, without JSON or hex.
  Answer<Match> match(std::string_view cache, KeyList keys, std::uint64_t lease_ms);
  Answer<Match> match_json(std::string_view cache, KeyList keys, std::uint64_t lease_ms);

  Answer<Allocation> allocate(std::string_view cache, const AllocateRequest& request);
  Answer<> write_slot(std::string_view cache, const BlockHandle& handle, std::string_view lease,
                      std::span<const std::byte> bytes);
  // One status a block, in their order.
  Answer<std::vector<StoreStatus>> commit(std::string_view cache, std::string_view lease,
                                          std::span<const CommitBlock> blocks);

  // When the lease now ends, in Unix milliseconds.
  Answer<std::int64_t> renew_lease(std::string_view lease, std::uint64_t lease_ms);
  Answer<> release_blocks(std::string_view lease, std::span<const BlockHandle> blocks);
  // The lease ends, and with it a request of which that much is known.
  struct RequestEnd {
    std::optional<std::uint64_t> input_tokens = {};
    std::optional<std::uint64_t> output_tokens = {};
    std::string reuse = {};                       // never, soon or later; empty: nothing is said
    std::optional<std::uint64_t> within_ms = {};  // or that they are used within so long
  };
  Answer<> end_request(std::string_view lease, const RequestEnd& end);
  Answer<> end_lease(std::string_view lease);

  // The bytes of the longest present prefix into `room`; how many blocks that is.
  Answer<std::size_t> read(std::string_view cache, KeyList keys, std::span<std::byte> room);
  // `blocks` end to end, one a key. The first key's parent is `parent` (or none), each other's the
  // key before it. All are stored or none.
  struct WriteRequest {
    KeyList keys;
    std::span<const std::byte> parent;
    std::optional<Tier> tier;
    std::span<const std::byte> blocks;
  };
  Answer<std::vector<StoreStatus>> write(std::string_view cache, const WriteRequest& request);

  struct PutKeyOptions {
    std::span<const std::byte> parent;
    std::optional<Tier> tier;
    std::uint64_t ttl_ms = 0;  // 0: none
  };
  Answer<StoreStatus> put_key(std::string_view cache, std::span<const std::byte> key,
                              std::span<const std::byte> bytes, const PutKeyOptions& options);
  // The block's bytes into `room`; the tier they came from.
  Answer<Tier> get_key(std::string_view cache, std::span<const std::byte> key,
                       std::span<std::byte> room);
  Answer<> delete_key(std::string_view cache, std::span<const std::byte> key);

  struct TransferRequest {
    KeyList keys;
    Tier to = Tier::device;
    bool move = false;  // else copied
    std::uint64_t wait_ms = 0;
  };
  Answer<Transfer> start_transfer(std::string_view cache, const TransferRequest& request);
  Answer<Transfer> get_transfer(std::string_view id, std::uint64_t wait_ms);

  Answer<Metrics> metrics();

  // For what has no call here.
  HttpClient& http() { return http_; }

 private:
  Answer<HttpResponse> send(const HttpRequest& request,
                            std::span<const std::span<std::byte>> room = {});

  HttpClient http_;
};

}  // namespace cairn::client
