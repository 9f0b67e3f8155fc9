#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.hpp"
#include "base/result.hpp"
#include "blockmgr/index/config.hpp"
#include "blockmgr/share/group_types.hpp"
#include "blockmgr/shared/shared_tier.hpp"
#include "memory/device_runtime.hpp"
#include "server/auth/caller.hpp"
#include "server/codec/fields.hpp"
#include "server/config/api_limits.hpp"
#include "server/config/restore_setting.hpp"
#include "server/events/zmq_publisher.hpp"
#include "server/http/http_server.hpp"
#include "server/http/tls.hpp"
#include "transport/engine/transfer_engine.hpp"
#include "transport/io/uring_disk_io.hpp"
#include "transport/store/http_peers.hpp"
#include "transport/store/redis_settings.hpp"

namespace cairn {

enum class RuntimeChoice : std::uint8_t {
  automatic,  // cuda where a device answers, else host
  host,
  cuda,
};

enum class DiskEngine : std::uint8_t {
  automatic,  // io_uring where the kernel allows it, else threads
  io_uring,
  threads,
};

enum class LogFormat : std::uint8_t { logfmt, json };

// The kernel clears some 1 GB/s a thread; more than these would take the memory's bandwidth from
// those who serve.
inline constexpr unsigned kPopulateThreads = 4;

inline BlockManagerOptions default_block_options() {
  BlockManagerOptions options;
  options.populate_threads = kPopulateThreads;
  return options;
}

// Everything that can be set. The defaults are the ones that --help tells.
struct Settings {
  http::ListenConfig listen;
  http::TlsFiles tls;       // without a certificate: plain HTTP
  ZmqSettings zmq;          // without an endpoint: events are not published
  std::string tokens_path;  // empty: everybody may do everything
  std::uint64_t max_leased_blocks_per_token = kMaxLeasedBlocks;
  // Without tokens the server listens on a loopback address only, unless this says otherwise.
  bool allow_anonymous = false;
  http::HttpLimits http;
  std::vector<std::string> allowed_hosts;  // as SiteGate takes them
  ApiLimits api;
  std::filesystem::path data_dir = "cairn-data";
  bool known_data_dir = false;  // one that no server has used is not made
  RuntimeChoice runtime = RuntimeChoice::automatic;
  HostRuntimeOptions host;
  TransferEngineOptions transfers;
  DiskEngine disk_engine = DiskEngine::automatic;
  UringOptions uring;
  bool offload_at_stop = false;  // a clean end brings what is in memory to disk first
  std::string crash_at;          // tests: the place where the process kills itself; empty: nowhere
  BlockManagerOptions blocks = default_block_options();
  GroupOptions groups;
  std::optional<RedisSettings> shared;  // nothing: no cache has a shared tier
  // The URL by which other servers reach this one; empty: the address listened on.
  std::string advertise;
  PeerSettings peers;  // how they are reached
  SharedTierOptions shared_tier;
  std::vector<CacheConfig> caches;
  std::vector<RestoreSetting> restore;  // in this order, after the caches are made
  LogLevel log_level = LogLevel::info;
  LogFormat log_format = LogFormat::logfmt;
  // Of a shutdown: so long /readyz says so while everything is still served, for those who send
  // requests here to hear of it.
  std::uint32_t drain_delay_ms = 0;
  std::uint32_t drain_timeout_ms = 10'000;  // of a shutdown: what is still in progress is then cut
};

// The cache that is made where none is configured: 32 layers of keys and values of 16 tokens with
// 1024 values of 2 bytes each, so blocks of 2 MiB; 128 MiB of them on the device, 512 MiB pinned,
// 2 GiB on disk.
CacheConfig default_cache();

// "127.0.0.1:7070", "[::1]:7070".
Result<http::ListenConfig> parse_listen(std::string_view text);

// True where the host is an address of the machine's own loopback, or "localhost".
bool is_loopback(const std::string& host);

// A configuration: the members of the file, all optional. The error names the field.
Result<Settings> read_settings(std::string_view json_text);

// Every field that read_settings() knows, those of `caches` aside, as it asks for them.
std::vector<FieldNote> setting_notes();

}  // namespace cairn
