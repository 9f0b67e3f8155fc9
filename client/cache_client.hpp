#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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

// The HTTP contract as typed calls on one connection. A status other than 2xx returns a
// ClientError. Blocking. Not thread-safe.
class CacheClient {
 public:
  explicit CacheClient(Endpoint endpoint, HttpOptions options = {});

  // Calls any route with a JSON body or none. Returns the JSON of the response, null if it has no
  // body.
  Answer<nlohmann::json> call(std::string_view method, std::string_view target,
                              const std::optional<nlohmann::json>& body = std::nullopt);

  // Reads a body that may have no end, such as the events', until `take` returns false or the
  // server ends it.
  Answer<> stream(std::string_view target, const std::function<bool(std::string_view)>& take);

  struct PutCacheResult {
    bool created = false;        // false: it existed, with the same shape
    nlohmann::json description;  // as the server returned it
  };
  Answer<PutCacheResult> put_cache(std::string_view cache, const nlohmann::json& body);
  Answer<nlohmann::json> get_cache(std::string_view cache);
  Answer<> delete_cache(std::string_view cache, bool force);

  // How to map a tier's memory. `file` is the open file of the memory; null if the request did not
  // use a Unix socket or the memory has no file.
  struct ExportedTier {
    nlohmann::json description;
    std::shared_ptr<const FileDescriptor> file;
  };
  Answer<ExportedTier> export_tier(std::string_view cache, Tier tier);

  // Sends the keys as plain bytes, without JSON or hex.
  Answer<Match> match(std::string_view cache, KeyList keys, std::uint64_t lease_ms);
  // In a cache of several KV groups.
  Answer<GroupMatch> match_groups(std::string_view cache, KeyList keys, std::uint64_t lease_ms);
  Answer<Match> match_json(std::string_view cache, KeyList keys, std::uint64_t lease_ms);

  Answer<Allocation> allocate(std::string_view cache, const AllocateRequest& request);
  Answer<> write_slot(std::string_view cache, const BlockHandle& handle, std::string_view lease,
                      std::span<const std::byte> bytes);
  // Returns one status per block, in their order.
  Answer<std::vector<StoreStatus>> commit(std::string_view cache, std::string_view lease,
                                          std::span<const CommitBlock> blocks);

  // Returns the new end of the lease, in Unix milliseconds.
  Answer<std::int64_t> renew_lease(std::string_view lease, std::uint64_t lease_ms);
  Answer<> release_blocks(std::string_view lease, std::span<const BlockHandle> blocks);
  // Ends the lease and its request. All fields are optional.
  struct RequestEnd {
    std::optional<std::uint64_t> input_tokens = {};
    std::optional<std::uint64_t> output_tokens = {};
    std::string reuse = {};                       // never, soon or later; empty: no hint
    std::optional<std::uint64_t> within_ms = {};  // reused within this time; replaces `reuse`
  };
  Answer<> end_request(std::string_view lease, const RequestEnd& end);
  Answer<> end_lease(std::string_view lease);

  // Reads the longest stored prefix into `room`. Returns its number of blocks. `kv_group`: of the
  // blocks; empty in a cache of one group.
  Answer<std::size_t> read(std::string_view cache, KeyList keys, std::span<std::byte> room,
                           std::string_view kv_group = {});
  // Stores `blocks`, end to end, one per key: all or none. `parent` (may be empty) is the parent of
  // the first key; each other key's parent is the key before it.
  struct WriteRequest {
    KeyList keys;
    std::span<const std::byte> parent;
    std::optional<Tier> tier;
    std::span<const std::byte> blocks;
    std::string_view kv_group = {};  // of all blocks; empty in a cache of one group
  };
  Answer<std::vector<StoreStatus>> write(std::string_view cache, const WriteRequest& request);

  struct PutKeyOptions {
    std::span<const std::byte> parent;
    std::optional<Tier> tier;
    std::uint64_t ttl_ms = 0;  // 0: none
  };
  Answer<StoreStatus> put_key(std::string_view cache, std::span<const std::byte> key,
                              std::span<const std::byte> bytes, const PutKeyOptions& options);
  // Reads the block into `room`. Returns the tier that it came from.
  Answer<Tier> get_key(std::string_view cache, std::span<const std::byte> key,
                       std::span<std::byte> room, std::string_view kv_group = {});
  Answer<> delete_key(std::string_view cache, std::span<const std::byte> key);

  struct TransferRequest {
    KeyList keys;
    Tier to = Tier::device;
    bool move = false;  // else copy
    std::uint64_t wait_ms = 0;
  };
  Answer<Transfer> start_transfer(std::string_view cache, const TransferRequest& request);
  Answer<Transfer> get_transfer(std::string_view id, std::uint64_t wait_ms);

  Answer<Metrics> metrics();

  // For routes without a call here.
  HttpClient& http() { return http_; }

 private:
  Answer<nlohmann::json> match_packed(std::string_view cache, KeyList keys, std::uint64_t lease_ms);
  Answer<HttpResponse> send(const HttpRequest& request,
                            std::span<const std::span<std::byte>> room = {});

  HttpClient http_;
};

}  // namespace cairn::client
