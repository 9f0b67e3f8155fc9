#include "server/config/settings.hpp"

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <charconv>
#include <fstream>

#include "base/token.hpp"
#include "blockmgr/index/cache_name.hpp"
#include "server/auth/site_gate.hpp"
#include "server/codec/cache_body.hpp"
#include "server/codec/dom_blocks.hpp"
#include "server/codec/fields.hpp"
#include "server/codec/ids.hpp"

namespace cairn {
namespace {

constexpr std::array<std::string_view, 3> kRuntimeWords = {"auto", "host", "cuda"};
constexpr std::array<std::string_view, 2> kAdmissionWords = {"always", "second_use"};
constexpr std::array<std::string_view, 3> kDiskEngineWords = {"auto", "io_uring", "threads"};
constexpr std::array<std::string_view, 2> kCollectiveWords = {"local", "nccl"};
constexpr std::array<std::string_view, 4> kLogWords = {"debug", "info", "warning", "error"};
constexpr std::array<std::string_view, 2> kLogFormatWords = {"logfmt", "json"};

// A day. A longer timeout is probably in the wrong unit.
constexpr NumberBounds kTimeoutMs{1, 86'400'000};
constexpr NumberBounds kCount{1, UINT32_MAX};

void read(Fields& fields, std::string_view name, NumberBounds bounds, std::uint32_t& out) {
  if (const auto value = fields.optional_number(name, bounds)) {
    out = static_cast<std::uint32_t>(*value);
  }
  fields.note_standard(name, out);
}
void read(Fields& fields, std::string_view name, NumberBounds bounds, std::uint64_t& out) {
  if (const auto value = fields.optional_number(name, bounds)) out = *value;
  fields.note_standard(name, out);
}

// Reads the member object `name` with `read_members`, if present.
template <class ReadMembers>
void section(Fields& fields, std::string_view name, ReadMembers&& read_members) {
  const json* object = fields.optional_object(name);
  if (object == nullptr) return;
  Fields members(*object, fields.path_of(name), fields.errors());
  read_members(members);
  members.finish();
}

void read_allowed_hosts(Fields& fields, std::vector<std::string>& out) {
  const json* hosts = fields.optional_list("allowed_hosts");
  if (hosts == nullptr) return;
  for (const json& host : *hosts) {
    if (host.is_string() && is_allowed_host_form(host.get_ref<const std::string&>())) {
      out.push_back(host);
    } else {
      fields.errors().add(ErrorCode::malformed,
                          fields.path_of("allowed_hosts") + " has " + host.dump().substr(0, 80) +
                              ", which is no name in lower case or address without a port, "
                              "\"*.NAME\" or \"*\"");
    }
  }
}

void read_http(Fields& fields, Settings& out) {
  read_allowed_hosts(fields, out.allowed_hosts);
  read(fields, "max_connections", {1, 1'000'000}, out.http.max_connections);
  read(fields, "max_header_bytes", {1024, 1u << 20}, out.http.max_header_bytes);
  read(fields, "max_body_bytes", {1024, 1ull << 30}, out.api.max_body_bytes);
  // A body's buffer doubles as it grows, and takes up to five times the body's size.
  out.http.body_memory_bytes = std::max(out.http.body_memory_bytes, 5 * out.api.max_body_bytes);
  read(fields, "max_write_header_bytes", {1024, 1u << 30}, out.api.max_write_header_bytes);
  read(fields, "header_timeout_ms", kTimeoutMs, out.http.header_timeout_ms);
  read(fields, "body_timeout_ms", kTimeoutMs, out.http.body_timeout_ms);
  read(fields, "least_rate_bytes_per_s", {1024, 1'000'000'000}, out.http.least_rate_bytes_per_s);
  read(fields, "idle_timeout_ms", kTimeoutMs, out.http.idle_timeout_ms);
}

void read_blocks(Fields& fields, BlockManagerOptions& out) {
  read(fields, "max_caches", kCount, out.max_caches);
  read(fields, "max_leases", kCount, out.max_leases);
  read(fields, "max_held_blocks", {1, 1u << 30}, out.max_held_blocks);
  read(fields, "max_lease_ms", kTimeoutMs, out.max_lease_ms);
  read(fields, "partial_block_ms", kTimeoutMs, out.partial_block_ms);
  read(fields, "max_blocks_per_request", {1, 1u << 20}, out.max_blocks_per_request);
  read(fields, "max_transfers", kCount, out.max_transfers);
  read(fields, "kept_transfers", kCount, out.kept_transfers);
  read(fields, "max_waiting_allocations", kCount, out.max_waiting_allocations);
  read(fields, "staging_bytes", {4096, 1ull << 40}, out.staging_bytes);
  read(fields, "populate_threads", {0, 64}, out.populate_threads);
  read(fields, "max_metadata_bytes", {0, 1u << 20}, out.max_metadata_bytes);
  read(fields, "max_history_bytes", {64, 1ull << 40}, out.max_history_bytes);
  read(fields, "max_snapshots", kCount, out.max_snapshots);
  read(fields, "max_snapshot_jobs", {1, 64}, out.max_snapshot_jobs);
}

void read_folders(Fields& fields, std::vector<std::filesystem::path>& out) {
  const json* folders = fields.optional_list("folders");
  if (folders == nullptr) return;
  for (const json& folder : *folders) {
    if (folder.is_string() && !folder.get_ref<const std::string&>().empty()) {
      out.emplace_back(folder.get_ref<const std::string&>());
    } else {
      fields.errors().add(ErrorCode::wrong_type,
                          fields.path_of("folders") + " has something that is no path");
    }
  }
}

// Normalizes the folders like a client's path, to compare them as text: absolute, without a slash
// at the end.
void read_import_folders(Fields& fields, std::vector<std::filesystem::path>& out) {
  read_folders(fields, out);
  for (std::filesystem::path& folder : out) {
    if (!folder.is_absolute()) {
      fields.errors().add(
          ErrorCode::out_of_range,
          fields.path_of("folders") + " has '" + folder.string() + "', which is no absolute path");
    }
    folder = folder.lexically_normal();
    if (!folder.has_filename() && folder.has_relative_path()) folder = folder.parent_path();
  }
}

void read_disk(Fields& fields, Settings& settings) {
  DiskOptions& out = settings.blocks.disk;
  settings.disk_engine =
      static_cast<DiskEngine>(fields.optional_word("engine", kDiskEngineWords).value_or(0));
  read(fields, "depth", {1, 4096}, settings.uring.depth);
  read(fields, "piece_bytes", {4096, 1ull << 30}, settings.uring.piece_bytes);
  if (settings.uring.piece_bytes % 4096 != 0) {
    fields.errors().add(ErrorCode::out_of_range, fields.path_of("piece_bytes") + " is " +
                                                     std::to_string(settings.uring.piece_bytes) +
                                                     ", not a multiple of 4096");
  }
  read(fields, "checkpoint_period_ms", {0, 86'400'000}, out.checkpoint_period_ms);
  out.admission =
      static_cast<DiskAdmission>(fields.optional_word("admission", kAdmissionWords).value_or(0));
  read(fields, "write_bytes_per_s", {}, out.write_bytes_per_s);
  read(fields, "scrub_bytes_per_s", {}, out.scrub_bytes_per_s);
  settings.uring.register_buffers =
      fields.optional_bool("register_buffers").value_or(settings.uring.register_buffers);
  settings.offload_at_stop = fields.optional_bool("offload_at_stop").value_or(false);
  settings.crash_at = fields.optional_string("crash_at").value_or("");
  read_folders(fields, out.folders);
  out.direct = fields.optional_bool("direct").value_or(out.direct);
  out.checksums = fields.optional_bool("checksums").value_or(out.checksums);
  out.replace_other_shape =
      fields.optional_bool("replace_other_shape").value_or(out.replace_other_shape);
}

void read_copy_forms(Fields& fields, FormThresholds& out) {
  read(fields, "batch_least_pieces", kCount, out.batch_least_pieces);
  read(fields, "kernel_least_pieces", kCount, out.kernel_least_pieces);
  read(fields, "kernel_most_piece_bytes", {0, 1ull << 40}, out.kernel_most_piece_bytes);
  read(fields, "rows_least_rows", {0, UINT32_MAX}, out.rows_least_rows);
}

// In the order of CopyStrategy.
constexpr std::array<std::string_view, kNumCopyStrategies> kStrategyWords = {
    "auto", "sync", "async", "polling", "unified"};

void read_strategy(Fields& fields, std::string_view way, CopyStrategy& out) {
  out = static_cast<CopyStrategy>(fields.optional_word(way, kStrategyWords).value_or(0));
}

void read_transfers(Fields& fields, TransferSchedulerOptions& out) {
  read(fields, "workers", {1, 64}, out.workers);
  read(fields, "max_queued_jobs", kCount, out.max_queued_jobs);
  read(fields, "disk_threads", {1, 64}, out.disk_threads);
  read(fields, "staging_bytes", {4096, 1ull << 40}, out.staging_bytes);
  read(fields, "polling_interval_us", {1, 1'000'000}, out.polling_interval_us);
  read(fields, "device_kept_bytes", {0, 1ull << 50}, out.device_kept_bytes);
  section(fields, "strategy", [&out](Fields& ways) {
    read_strategy(ways, "load", out.strategy.load);
    read_strategy(ways, "store", out.strategy.store);
    read_strategy(ways, "device", out.strategy.device);
  });
  section(fields, "copy_forms", [&out](Fields& members) {
    section(members, "load", [&](Fields& way) { read_copy_forms(way, out.copy_forms.load); });
    section(members, "store", [&](Fields& way) { read_copy_forms(way, out.copy_forms.store); });
    section(members, "device", [&](Fields& way) { read_copy_forms(way, out.copy_forms.device); });
  });
}

void read_groups(Fields& fields, GroupOptions& out) {
  read(fields, "max_groups", {0, 1024}, out.max_groups);
  read(fields, "max_world_size", {1, kMaxWorldSize}, out.max_world_size);
  read(fields, "max_queued_operations", {1, 65'536}, out.max_queued_operations);
  read(fields, "max_values", {1, 65'536}, out.max_values);
  read(fields, "join_timeout_ms", kTimeoutMs, out.join_timeout_ms);
  read(fields, "step_timeout_ms", kTimeoutMs, out.step_timeout_ms);
  read(fields, "piece_bytes", {4096, 1ull << 30}, out.piece_bytes);
  read(fields, "packing_bytes", {4096, 1ull << 40}, out.packing_bytes);
  if (const auto host = fields.optional_string("host")) out.host = *host;
  if (const auto kind = fields.optional_word("collective", kCollectiveWords)) {
    out.collective = kCollectiveWords[*kind];
  }
}

std::vector<CacheConfig> read_caches(Fields& fields) {
  std::vector<CacheConfig> caches;
  const json* list = fields.optional_list("caches");
  if (list == nullptr) return {default_cache()};
  for (const json& item : *list) {
    Fields members(item, "caches[" + std::to_string(caches.size()) + "]", fields.errors());
    std::string name = members.string("name");
    if (!fields.errors().any() && !is_cache_name(name)) {
      fields.errors().add(ErrorCode::malformed, members.path_of("name") + " is '" +
                                                    name.substr(0, 80) + "'; " +
                                                    std::string(kCacheNameRule));
    }
    for (const CacheConfig& other : caches) {
      if (other.name == name) {
        fields.errors().add(ErrorCode::malformed, members.path_of("name") + " is '" + name +
                                                      "', which another cache has");
      }
    }
    caches.push_back(read_cache_fields(members, std::move(name)));
    members.finish();
  }
  return caches;
}

// Reads an enumerator by the index of its word. `out` stays if the field is missing.
template <class E, std::size_t n>
void read_word(Fields& fields, std::string_view name, const std::array<std::string_view, n>& words,
               E& out) {
  if (const auto at = fields.optional_word(name, words)) out = static_cast<E>(*at);
}

void read_zmq(Fields& fields, ZmqSettings& out) {
  static constexpr std::array<std::string_view, 2> kEvents = {"arrays", "maps"};
  static constexpr std::array<std::string_view, 2> kHashes = {"bytes", "int64"};
  static constexpr std::array<std::string_view, 2> kShared = {"medium", "locality"};
  out.endpoint = fields.optional_string("endpoint").value_or("");
  out.replay_endpoint = fields.optional_string("replay_endpoint").value_or("");
  out.topic = fields.optional_string("topic").value_or("");
  out.cache = fields.optional_string("cache").value_or("");
  read_word(fields, "events", kEvents, out.form.events);
  read_word(fields, "hashes", kHashes, out.form.hashes);
  read_word(fields, "shared", kShared, out.form.shared);
  read(fields, "rank", kAnyU32, out.form.rank);
  read(fields, "kept_batches", {1, 1u << 20}, out.kept_batches);
  read(fields, "high_water_mark", {1, 1u << 20}, out.high_water_mark);
  read(fields, "max_clients", {1, 1u << 16}, out.max_clients);
  if (out.endpoint.empty() && !out.replay_endpoint.empty()) {
    fields.errors().add(ErrorCode::missing_field,
                        fields.path_of("endpoint") + " is missing; replay_endpoint needs one");
  }
}

void read_events(Fields& fields, Settings& out) {
  read(fields, "kept", {64, 1u << 24}, out.blocks.kept_events);
  section(fields, "zmq", [&out](Fields& members) { read_zmq(members, out.zmq); });
}

// Returns the first line of the file that the field names, without its line end.
std::string read_secret(Fields& fields, std::string_view name) {
  const auto path = fields.optional_string(name);
  if (!path) return {};
  std::ifstream file(*path, std::ios::binary);
  std::string secret;
  if (!file || !std::getline(file, secret)) {
    fields.errors().add(ErrorCode::not_found, fields.path_of(name) + " is '" + *path +
                                                  "', which cannot be read or is empty");
  }
  if (secret.ends_with('\r')) secret.pop_back();
  return secret;
}

void read_wire_tls(Fields& fields, WireTls& out) {
  out.ca = fields.optional_string("ca").value_or("");
  out.certificate = fields.optional_string("cert").value_or("");
  out.key = fields.optional_string("key").value_or("");
  if (out.certificate.empty() != out.key.empty()) {
    fields.errors().add(ErrorCode::missing_field,
                        fields.path_of(out.key.empty() ? "key" : "cert") +
                            " is missing; a certificate and its key come together");
  }
}

// Each user is a name or a number.
void read_users(Fields& fields, std::string_view name, std::vector<uid_t>& out) {
  const json* users = fields.optional_list(name);
  if (users == nullptr) return;
  const std::string path = fields.path_of(name);
  for (const json& user : *users) {
    if (!user.is_string()) {
      fields.errors().add(ErrorCode::wrong_type, path + " has something that is no string");
      return;
    }
    const auto found = http::find_user(user);
    if (found) {
      out.push_back(*found);
    } else {
      fields.errors().add(found.error().code, path + " cannot be used: " + found.error().detail);
    }
  }
}

void read_peers(Fields& fields, PeerSettings& out) {
  auto token = bearer_token(read_secret(fields, "token_file"), fields.path_of("token_file"));
  if (token) {
    out.token = std::move(*token);
  } else {
    fields.errors().add(token.error().code, token.error().detail);
  }
  read_wire_tls(fields, out.tls);
  read_users(fields, "unix_users", out.unix_users);
  out.needs_tls = !out.tls.ca.empty();
  read(fields, "connections", {1, 64}, out.connections);
  read(fields, "timeout_ms", {10, 60'000}, out.timeout_ms);
  read(fields, "max_queued", {1, 65'536}, out.max_queued);
}

// 1 EiB: more than any bucket has, and no sum of it overflows.
constexpr std::uint64_t kMaxS3Bytes = 1ull << 60;

void read_s3(Fields& fields, Settings& out) {
  S3Settings s3;
  s3.bucket = fields.optional_string("bucket").value_or("");
  s3.prefix = fields.optional_string("prefix").value_or(s3.prefix);
  s3.endpoint = fields.optional_string("endpoint").value_or("");
  s3.region = fields.optional_string("region").value_or(s3.region);
  s3.path_style = fields.optional_bool("path_style").value_or(!s3.endpoint.empty());
  s3.credentials_file = fields.optional_string("credentials_file").value_or("");
  s3.profile = fields.optional_string("profile").value_or("");
  s3.instance_role = fields.optional_bool("instance_role").value_or(false);
  s3.ca = fields.optional_string("ca").value_or("");
  s3.proxy = fields.optional_string("proxy").value_or("");
  read(fields, "connections", {1, 64}, s3.connections);
  read(fields, "timeout_ms", {100, 60'000}, s3.timeout_ms);
  read(fields, "max_queued", {1, 65'536}, s3.max_queued);
  read(fields, "object_bytes", {1u << 16, 1u << 30}, s3.object_bytes);
  read(fields, "linger_ms", {0, 60'000}, s3.linger_ms);
  read(fields, "poll_ms", {100, 86'400'000}, s3.poll_ms);
  read(fields, "capacity_bytes", {0, kMaxS3Bytes}, s3.bounds.capacity_bytes);
  read(fields, "requests_per_s", {0, 1'000'000}, s3.bounds.requests_per_s);
  read(fields, "requests_per_day", {0, 1'000'000'000'000}, s3.bounds.requests_per_day);
  read(fields, "bytes_per_s", {0, kMaxS3Bytes}, s3.bounds.bytes_per_s);
  section(fields, "prices", [&s3](Fields& prices) {
    s3.prices.million_puts = prices.optional_amount("million_puts").value_or(0);
    s3.prices.million_gets = prices.optional_amount("million_gets").value_or(0);
    s3.prices.gib_received = prices.optional_amount("gib_received").value_or(0);
    s3.prices.gib_month = prices.optional_amount("gib_month").value_or(0);
  });
  if (s3.bucket.empty()) {
    fields.errors().add(ErrorCode::missing_field, fields.path_of("bucket") + " is missing");
  } else if (auto checked = check(s3); !checked) {
    fields.errors().add(checked.error().code, fields.path_of("") + checked.error().detail);
  }
  out.s3 = std::move(s3);
}

void read_remote_tier(Fields& fields, Settings& out) {
  const auto url = fields.optional_string("url");
  RedisSettings store;
  if (url) {
    auto read = redis_settings_from(*url);
    if (read) {
      store = std::move(*read);
    } else {
      fields.errors().add(read.error().code, fields.path_of("url") + ": " + read.error().detail);
    }
  }
  store.user = fields.optional_string("user").value_or("");
  store.password = read_secret(fields, "password_file");
  section(fields, "tls", [&store](Fields& tls) { read_wire_tls(tls, store.tls_files); });
  read(fields, "connections", {1, 64}, store.connections);
  read(fields, "timeout_ms", {10, 60'000}, store.timeout_ms);
  read(fields, "max_queued", {1, 65'536}, store.max_queued);
  auto deadline_us = static_cast<std::uint64_t>(out.remote_tier.match_deadline.count());
  read(fields, "match_deadline_us", {100, 10'000'000}, deadline_us);
  out.remote_tier.match_deadline = std::chrono::microseconds(deadline_us);
  auto evict_wait_ms = static_cast<std::uint64_t>(out.remote_tier.evict_wait.count());
  read(fields, "evict_wait_ms", {0, 60'000}, evict_wait_ms);
  out.remote_tier.evict_wait = std::chrono::milliseconds(evict_wait_ms);
  auto touch_ms = static_cast<std::uint64_t>(out.remote_tier.touch_interval.count());
  read(fields, "touch_interval_ms", {100, 86'400'000}, touch_ms);
  out.remote_tier.touch_interval = std::chrono::milliseconds(touch_ms);
  section(fields, "peer", [&out](Fields& peer) { read_peers(peer, out.peers); });
  section(fields, "s3", [&out](Fields& s3) { read_s3(s3, out); });
  if (const auto advertise = fields.optional_string("advertise")) {
    if (auto read = read_peer_url(*advertise); !read) {
      fields.errors().add(read.error().code,
                          fields.path_of("advertise") + ": " + read.error().detail);
    } else if (read->address.host.empty()) {
      fields.errors().add(
          ErrorCode::malformed,
          fields.path_of("advertise") + " is a Unix socket, which other hosts do not reach");
    }
    out.advertise = *advertise;
  }
  if (url) out.shared = std::move(store);
}

void read_unix_access(Fields& fields, http::UnixAccess& out) {
  DecodeErrors& errors = fields.errors();
  if (const auto name = fields.optional_string("unix_group")) {
    const auto group = http::find_group(*name);
    if (group) {
      out.group = *group;
    } else {
      errors.add(group.error().code,
                 fields.path_of("unix_group") + " cannot be used: " + group.error().detail);
    }
  }
  read_users(fields, "unix_users", out.users);
}

void read_security(Fields& fields, Settings& out) {
  out.tls.certificate = fields.optional_string("tls_cert").value_or("");
  out.tls.key = fields.optional_string("tls_key").value_or("");
  out.tls.client_ca = fields.optional_string("tls_client_ca").value_or("");
  out.tokens_path = fields.optional_string("tokens").value_or("");
  out.allow_anonymous = fields.optional_bool("allow_anonymous").value_or(false);
  DecodeErrors& errors = fields.errors();
  if (out.tls.certificate.empty() != out.tls.key.empty()) {
    errors.add(ErrorCode::missing_field, out.tls.key.empty()
                                             ? "tls_key is missing; tls_cert needs one"
                                             : "tls_cert is missing; tls_key needs one");
  }
  if (!out.tls.client_ca.empty() && out.tls.certificate.empty()) {
    errors.add(ErrorCode::missing_field, "tls_cert is missing; tls_client_ca needs one");
  }
  if (out.tokens_path.empty() && !out.allow_anonymous && !is_loopback(out.listen.host)) {
    errors.add(ErrorCode::impossible,
               "listen is '" + out.listen.host +
                   "', which is no loopback address: anyone who reaches it could read and delete "
                   "every block. Give tokens (--tokens FILE), or --allow-anonymous");
  }
}

void read_tracing(Fields& fields, TracingSettings& out) {
  out.otlp_endpoint = fields.optional_string("otlp_endpoint").value_or("");
  if (!out.otlp_endpoint.empty()) {
    if (const auto target = read_trace_target(out.otlp_endpoint); !target) {
      fields.errors().add(target.error().code,
                          fields.path_of("otlp_endpoint") + ": " + target.error().detail);
    }
  }
  out.sample = fields.optional_share("sample").value_or(out.sample);
}

std::vector<RestoreSetting> read_restore(Fields& fields) {
  std::vector<RestoreSetting> restore;
  const json* list = fields.optional_list("restore");
  if (list == nullptr) return restore;
  for (const json& item : *list) {
    const std::string path = "restore[" + std::to_string(restore.size()) + "]";
    if (!item.is_string()) {
      fields.errors().add(ErrorCode::wrong_type, path + " is no string");
      break;
    }
    auto setting = parse_restore(item.get<std::string>());
    if (!setting) {
      fields.errors().add(setting.error().code, path + " " + setting.error().detail);
      break;
    }
    restore.push_back(std::move(*setting));
  }
  return restore;
}

}  // namespace

CacheConfig default_cache() {
  CacheConfig cache;
  cache.name = "default";
  cache.shape = {.num_layers = 32,
                 .outer_dim = 2,
                 .page_size = 16,
                 .inner_dim = 1024,
                 .dtype_width_bytes = 2,
                 .alignment = kDefaultAlignment};
  cache.tiers[index_of(Tier::device)] = TierConfig{.num_blocks = 64};
  cache.tiers[index_of(Tier::pinned)] = TierConfig{.num_blocks = 256};
  cache.tiers[index_of(Tier::disk)] = TierConfig{.num_blocks = 1024};
  return cache;
}

Result<http::ListenConfig> parse_listen(std::string_view text) {
  const Error wrong{ErrorCode::malformed,
                    "listen is '" + std::string(text.substr(0, 80)) +
                        "'; it takes HOST:PORT, e.g. 127.0.0.1:7070 or [::1]:7070"};
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos) return wrong;
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return wrong;
  }
  http::ListenConfig listen;
  listen.host = host;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), listen.port);
  if (host.empty() || error != std::errc() || end != port.data() + port.size()) return wrong;
  return listen;
}

// Returns true for 0.0.0.0 and [::], which other servers cannot connect to.
static bool is_any_address(const std::string& host) {
  boost::system::error_code error;
  const auto address = boost::asio::ip::make_address(host, error);
  return !error && address.is_unspecified();
}

bool is_loopback(const std::string& host) {
  boost::system::error_code error;
  const auto address = boost::asio::ip::make_address(host, error);
  return error ? host == "localhost" : address.is_loopback();
}

namespace {

Settings read_document(const json& document, DecodeErrors& errors) {
  Fields fields(document, "", errors);
  Settings settings;
  if (const auto text = fields.optional_string("listen")) {
    auto listen = parse_listen(*text);
    if (listen) {
      settings.listen = std::move(*listen);
    } else {
      errors.add(listen.error().code, listen.error().detail);
    }
  }
  settings.listen.unix_path = fields.optional_string("unix").value_or("");
  read_unix_access(fields, settings.listen.unix_access);
  if (const auto path = fields.optional_string("data_dir")) settings.data_dir = *path;
  settings.known_data_dir = fields.optional_bool("known_data_dir").value_or(false);
  if (settings.data_dir.empty()) {
    errors.add(ErrorCode::out_of_range, "data_dir is empty; it takes a path");
  }
  read_security(fields, settings);
  settings.runtime =
      static_cast<RuntimeChoice>(fields.optional_word("runtime", kRuntimeWords).value_or(0));
  settings.log_level =
      static_cast<LogLevel>(fields.optional_word("log_level", kLogWords).value_or(1));
  settings.log_format =
      static_cast<LogFormat>(fields.optional_word("log_format", kLogFormatWords).value_or(0));
  section(fields, "tracing",
          [&settings](Fields& members) { read_tracing(members, settings.tracing); });
  read(fields, "threads", {1, 256}, settings.http.threads);
  read(fields, "drain_delay_ms", {0, 3'600'000}, settings.drain_delay_ms);
  read(fields, "drain_timeout_ms", kTimeoutMs, settings.drain_timeout_ms);
  section(fields, "host", [&settings](Fields& members) {
    read(members, "devices", {1, 64}, settings.host.devices);
    read(members, "device_bytes", {}, settings.host.device_bytes);
  });
  section(fields, "http", [&settings](Fields& members) { read_http(members, settings); });
  section(fields, "events", [&settings](Fields& members) { read_events(members, settings); });
  section(fields, "blocks", [&settings](Fields& members) {
    read_blocks(members, settings.blocks);
    read(members, "max_leased_blocks_per_token", {}, settings.max_leased_blocks_per_token);
  });
  section(fields, "disk", [&settings](Fields& members) { read_disk(members, settings); });
  section(fields, "import", [&settings](Fields& members) {
    read_import_folders(members, settings.blocks.import_folders);
    read(members, "max_bytes", {}, settings.blocks.max_registered_bytes);
  });
  section(fields, "record", [&settings](Fields& members) {
    settings.blocks.record_path = members.optional_string("path").value_or("");
    read(members, "max_bytes", {4096, 1ull << 50}, settings.blocks.max_record_bytes);
  });
  section(fields, "transfers",
          [&settings](Fields& members) { read_transfers(members, settings.transfers); });
  section(fields, "shared", [&settings](Fields& members) { read_remote_tier(members, settings); });
  section(fields, "groups",
          [&settings](Fields& members) { read_groups(members, settings.groups); });
  section(fields, "pressure", [&settings](Fields& members) {
    for (Tier tier : kTiers) {
      section(members, to_string(tier), [&](Fields& of_tier) {
        read_pressure(of_tier, pressure_of(tier), settings.blocks.pressure[index_of(tier)]);
      });
    }
    section(members, "pools", [&settings](Fields& of_pools) {
      read_pressure(of_pools, PressureOf::pool, settings.pool_pressure);
    });
  });
  settings.caches = read_caches(fields);
  settings.blocks.has_remote_store = {settings.shared.has_value(), settings.s3.has_value()};
  settings.blocks.is_advertised =
      !settings.advertise.empty() || !is_any_address(settings.listen.host);
  // The default cache gets a shared tier, for a quick start.
  if ((settings.shared || settings.s3) && settings.caches == std::vector{default_cache()}) {
    CacheConfig& cache = settings.caches.front();
    cache.shared.emplace().store =
        settings.shared ? RemoteTierConfig::Store::redis : RemoteTierConfig::Store::s3;
    if (settings.shared && settings.s3) {
      cache.shared_far = RemoteTierConfig{.store = RemoteTierConfig::Store::s3,
                                          .write = RemoteTierConfig::Write::second_use};
    }
  }
  settings.restore = read_restore(fields);
  settings.blocks.data_dir = settings.data_dir;
  fields.finish();
  return settings;
}

}  // namespace

Result<Settings> read_settings(std::string_view json_text) {
  auto document = parse_document(json_text);
  if (!document) return std::move(document).error();
  DecodeErrors errors = DecodeErrors::with_units();
  Settings settings = read_document(*document, errors);
  CAIRN_TRY(errors.take());
  return settings;
}

std::vector<FieldNote> setting_notes() {
  std::vector<FieldNote> notes;
  DecodeErrors errors(notes);
  read_document(json::object(), errors);
  return notes;
}

}  // namespace cairn
