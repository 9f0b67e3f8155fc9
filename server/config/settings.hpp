#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.hpp"
#include "base/result.hpp"
#include "blockmgr/collectives/group_types.hpp"
#include "blockmgr/index/config.hpp"
#include "blockmgr/remote_tier/remote_tier.hpp"
#include "memory/device_runtime.hpp"
#include "memory/host/host_runtime.hpp"
#include "server/auth/caller.hpp"
#include "server/codec/fields.hpp"
#include "server/config/api_limits.hpp"
#include "server/config/restore_setting.hpp"
#include "server/events/zmq_publisher.hpp"
#include "server/http/http_server.hpp"
#include "server/http/server_tls.hpp"
#include "server/tracing/tracer.hpp"
#include "transport/io/uring_disk_io.hpp"
#include "transport/s3/s3_settings.hpp"
#include "transport/store/http_peers.hpp"
#include "transport/store/redis_settings.hpp"
#include "transport/transfer/transfer_scheduler.hpp"

namespace cairn {

enum class RuntimeChoice : std::uint8_t {
  automatic,  // cuda if a device responds, else host
  host,
  cuda,
};

enum class DiskEngine : std::uint8_t {
  automatic,  // io_uring if the kernel allows it, else threads
  io_uring,
  threads,
};

enum class LogFormat : std::uint8_t { logfmt, json_lines };

// The kernel clears about 1 GB/s per thread. More threads would take memory bandwidth from
// requests.
inline constexpr unsigned kPopulateThreads = 4;

inline BlockManagerOptions default_block_options() {
  BlockManagerOptions options;
  options.populate_threads = kPopulateThreads;
  return options;
}

// All settings, with the defaults that --help shows.
struct Settings {
  http::ListenConfig listen;
  http::TlsFiles tls;       // without a certificate: plain HTTP
  ZmqSettings zmq;          // without an endpoint: events are not published
  std::string tokens_path;  // empty: everyone may do everything
  std::uint64_t max_leased_blocks_per_token = kMaxLeasedBlocks;
  // Allows listening on other addresses than loopback without tokens.
  bool allow_anonymous = false;
  http::HttpLimits http;
  std::vector<std::string> allowed_hosts;  // in SiteGate's form
  ApiLimits api;
  std::filesystem::path data_dir = "cairn-data";
  bool known_data_dir = false;  // fail if no server has used the data directory
  RuntimeChoice runtime = RuntimeChoice::automatic;
  HostRuntimeOptions host;
  TransferSchedulerOptions transfers;
  DiskEngine disk_engine = DiskEngine::automatic;
  UringOptions uring;
  bool offload_at_stop = false;  // a clean stop first offloads blocks to disk
  std::string crash_at;          // for tests: where the process kills itself; empty: nowhere
  BlockManagerOptions blocks = default_block_options();
  PressureConfig pool_pressure;  // of each memory pool
  GroupOptions groups;
  std::optional<RedisSettings> shared;  // nullopt: no cache has a shared tier in a Redis
  std::optional<S3Settings> s3;         // nullopt: none has one in a bucket
  // The URL at which other servers reach this one; empty: the listen address.
  std::string advertise;
  PeerSettings peers;  // how to reach other servers
  RemoteTierOptions remote_tier;
  std::vector<CacheConfig> caches;
  std::vector<RestoreSetting> restore;  // in this order, after making the caches
  LogLevel log_level = LogLevel::info;
  LogFormat log_format = LogFormat::logfmt;
  TracingSettings tracing;
  // At shutdown: how long to keep serving after /readyz returns 503, so that clients go elsewhere.
  std::uint32_t drain_delay_ms = 0;
  std::uint32_t drain_timeout_ms = 10'000;  // at shutdown: the wait for requests in progress
};

// The cache that is made if none is configured: 32 layers of keys and values of 16 tokens with 1024
// values of 2 bytes each, so blocks of 2 MiB. The device has 128 MiB of them, pinned memory 512
// MiB, the disk 2 GiB.
CacheConfig default_cache();

// "127.0.0.1:7070", "[::1]:7070".
Result<http::ListenConfig> parse_listen(std::string_view text);

// Returns true if the host is a loopback address of this machine, or "localhost".
bool is_loopback(const std::string& host);

// Reads the configuration file; all members are optional. The error names the field.
Result<Settings> read_settings(std::string_view json_text);

// Every field that read_settings() knows, except those of `caches`, in the order in which it reads
// them.
std::vector<FieldNote> setting_notes();

}  // namespace cairn
