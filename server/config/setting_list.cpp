#include "server/config/setting_list.hpp"

#include <algorithm>
#include <cctype>

#include "base/assert.hpp"
#include "server/codec/dom_blocks.hpp"
#include "server/config/settings.hpp"

namespace cairn {

namespace {

using enum ValueKind;

// Those with a flag first, in the order of --help.
constexpr Setting kSettings[] = {
    {"listen", "HOST:PORT to listen on; port 0 takes any free port (default 127.0.0.1:7070)",
     "listen"},
    {"unix", "path of a Unix socket to listen on too (default none)", "unix"},
    {"unix_group",
     "group whose members may use the Unix socket (default none: the server's user and root)",
     "unix-group"},
    {"unix_users",
     "users, by name or number, separated by ',', who may use the Unix socket (default none)",
     "unix-users", names},
    {"http.allowed_hosts",
     "names and addresses, separated by ',', of this server in addition to localhost and its own "
     "addresses; *.NAME stands for all names below NAME, * for any (default none)",
     "allowed-hosts", names},
    {"tokens",
     "file of bearer tokens, read again on SIGHUP (default none: everybody may do everything)",
     "tokens"},
    {"allow_anonymous", "listen on other addresses than loopback without tokens", "allow-anonymous",
     yes},
    {"tls_cert",
     "PEM file with the certificate and its chain, read again on SIGHUP (default none: HTTP)",
     "tls-cert"},
    {"tls_key", "PEM file with its key", "tls-key"},
    {"tls_client_ca",
     "PEM file of authorities; clients then need a certificate signed by one of them (default "
     "none)",
     "tls-client-ca"},
    {"data_dir",
     "folder of the disk tiers, created if missing, locked while in use (default cairn-data)",
     "data-dir"},
    {"known_data_dir",
     "do not start with a data directory that no server has used, for example because its file "
     "system is not mounted",
     "known-data-dir", yes},
    {"import.folders",
     "folders, separated by ':', of the files that a cache may import as its memory (default "
     "none)",
     "import-folders", paths},
    {"runtime", "auto, host or cuda; auto takes cuda if a device responds (default auto)",
     "runtime"},
    {"threads", "network threads, 1 to 256 (default 1)", "threads", number},
    {"log_level", "debug, info, warning or error (default info)", "log-level"},
    {"log_format",
     "format of log lines: logfmt (name=value) or json (one object per line) (default logfmt)",
     "log-format"},
    {"tracing.otlp_endpoint",
     "URL of the OpenTelemetry collector that takes the traces of requests over OTLP/HTTP, e.g. "
     "http://127.0.0.1:4318 (default none: no request is traced)",
     "otlp-endpoint"},
    {"drain_delay_ms", "how long a shutdown keeps serving after /readyz returns 503 (default 0)",
     "drain-delay-ms", number},
    {"drain_timeout_ms", "how long a shutdown waits for requests in progress (default 10000)",
     "drain-timeout-ms", number},
    {"host.devices", "devices of the host runtime, 1 to 64 (default 1)", "host-devices", number},
    {"host.device_bytes", "memory of each of them; 0: no limit (default 0)", "host-device-bytes",
     number},
    {"http.max_connections",
     "TCP connections at once; above it idle ones are closed, then requests are refused (default "
     "4096)",
     "max-connections", number},
    {"http.max_header_bytes", "size of a request's line and headers (default 16384)",
     "max-header-bytes", number},
    {"http.max_body_bytes", "size of a JSON or MessagePack body (default 33554432)",
     "max-body-bytes", number},
    {"http.header_timeout_ms",
     "time from a request's first byte to the end of its headers (default 10000)",
     "header-timeout-ms", number},
    {"http.body_timeout_ms", "time without a byte of a body received or sent (default 30000)",
     "body-timeout-ms", number},
    {"http.least_rate_bytes_per_s",
     "lowest rate of a body or a response once body-timeout-ms is used up (default 262144)",
     "least-rate-bytes-per-s", number},
    {"http.idle_timeout_ms", "time between requests (default 120000)", "idle-timeout-ms", number},
    {"blocks.max_lease_ms", "longest lease that a client may request (default 3600000)",
     "max-lease-ms", number},
    {"blocks.partial_block_ms",
     "how long a block that lacks some of its head shards is kept after the last one came (default "
     "60000)",
     "partial-block-ms", number},
    {"blocks.max_leases", "leases of a cache (default 65536)", "max-leases", number},
    {"blocks.max_leased_blocks_per_token",
     "blocks that all leases and requests in flight of a token hold, if its entry in the tokens "
     "file does not say; a block counts as often as it is held (default 262144)",
     "max-leased-blocks-per-token", number},
    {"blocks.max_blocks_per_request", "keys or blocks of one request (default 65536)",
     "max-blocks-per-request", number},
    {"blocks.staging_bytes",
     "buffers for reads and writes of tiers that the CPU cannot access (default 67108864)",
     "staging-bytes", number},
    {"events.kept", "events kept for clients that resume, at least 64 (default 65536)",
     "events-kept", number},
    {"events.zmq.endpoint",
     "endpoint to publish events on over ZeroMQ, e.g. tcp://127.0.0.1:5557 (default none)",
     "events-zmq"},
    {"events.zmq.replay_endpoint", "endpoint for requests of missed events (default none)",
     "events-zmq-replay"},
    {"shared.url",
     "redis://HOST:PORT[,HOST:PORT...] (rediss:// with TLS) of the store that caches share with "
     "other servers (default none)",
     "shared"},
    {"record.path",
     "file to write a trace of all requests to, for cairn-replay, with salted hashes as keys; an "
     "existing file becomes FILE.old (default none)",
     "record"},
    {"shared.advertise",
     "URL at which other servers reach this one, for shared tiers with holders (default the "
     "address listened on)",
     "advertise"},
    {"transfers.workers", "concurrent transfers in memory, 1 to 64 (default 2)", "transfer-workers",
     number},
    {"transfers.strategy.load",
     "how copies to a device are done, and how their end is detected: auto, sync (the thread "
     "waits for the stream), async (an event), polling (the thread polls the event every "
     "transfers.polling_interval_us) or unified (tiers in unified memory) (default auto)",
     "transfer-strategy-load"},
    {"transfers.strategy.store", "the same for copies from a device (default auto)",
     "transfer-strategy-store"},
    {"transfers.strategy.device", "the same within a device and between devices (default auto)",
     "transfer-strategy-device"},
    {"transfers.device_kept_bytes",
     "unused memory of each device that is kept for the next tier or transfer instead of being "
     "returned to the driver (default 0)",
     "device-kept-bytes", number},
    {"transfers.disk_threads", "threads for the checksums of disk tiers, 1 to 64 (default 2)",
     "disk-threads", number},
    {"disk.engine",
     "auto, io_uring or threads; auto takes io_uring if the kernel allows it (default auto)",
     "disk-engine"},
    {"disk.admission",
     "which blocks leaving memory go to disk: always, or second_use (default always)",
     "disk-admission"},
    {"disk.write_bytes_per_s", "limit for offloads to disk; 0: no limit (default 0)",
     "disk-write-bytes-per-s", number},
    {"disk.scrub_bytes_per_s",
     "rate at which the disk tier is read and checked; 0: not at all (default 0)",
     "disk-scrub-bytes-per-s", number},
    {"disk.checkpoint_period_ms",
     "how often the index of a disk tier is made durable; 0: only at the end (default 30000)",
     "disk-checkpoint-ms", number},
    {"restore",
     "snapshot to restore before serving: CACHE=NAME of the data directory, CACHE=FILE or FILE "
     "(with a slash in its path); a missing cache is made from the snapshot; repeatable (default "
     "none)",
     "restore", repeated},
    {"tracing.sample",
     "share of the requests without a traceparent that are traced, 0 to 1; others are traced if "
     "their caller is (default 1)"},
    {"http.max_write_header_bytes", "size of the JSON header of a bulk write (default 4194304)"},
    {"blocks.max_caches", "number of caches (default 64)"},
    {"blocks.max_held_blocks",
     "blocks that all leases of a cache hold; a block counts as often as it is held (default "
     "16777216)"},
    {"blocks.max_transfers",
     "transfers that have not ended; above it requests get 429 (default 4096)"},
    {"blocks.kept_transfers", "ended transfers that can still be queried (default 4096)"},
    {"blocks.max_waiting_allocations",
     "allocations of a tier that wait for offloads (default 1024)"},
    {"blocks.max_metadata_bytes", "metadata of a block, as JSON (default 4096)"},
    {"blocks.max_history_bytes",
     "memory in which a learning order of eviction remembers evicted blocks, 13 bytes each "
     "(default 67108864)"},
    {"blocks.populate_threads",
     "threads that allocate the pages of pinned tiers before first use, at most half of their "
     "time, while memory is free; 0: none (default 4)"},
    {"blocks.max_snapshots", "snapshots of a cache (default 64)"},
    {"blocks.max_snapshot_jobs", "snapshots saved or restored at once (default 4)"},
    {"import.max_bytes",
     "host memory of engines that all agents and imported tiers together may use; 0: half of the "
     "memory available at the start (default 0)"},
    {"disk.depth", "I/O operations that io_uring runs at once (default 128)"},
    {"disk.piece_bytes",
     "longer reads and writes are split into pieces of this size; a multiple of 4096 (default "
     "1048576)"},
    {"disk.folders",
     "folders for slot files; each cache's slots are spread over all of them (default: the folder "
     "disk of the data directory)"},
    {"disk.direct", "bypass the page cache if the file system supports it (default true)"},
    {"disk.checksums",
     "compare every read with its checksum; false: only the first read after a restart (default "
     "true)"},
    {"disk.replace_other_shape",
     "replace a slot file of another shape by an empty one instead of refusing it, and accept a "
     "disk folder that has lost its mark as a new one (default false)"},
    {"disk.register_buffers", "register pinned memory with io_uring (default true)"},
    {"disk.offload_at_stop",
     "a clean stop first writes the blocks of device and pinned tiers to disk (default false)"},
    {"disk.crash_at", "for tests: where the process kills itself (default none)"},
    {"events.zmq.topic",
     "the topic; {cache} in it is replaced by the cache's name (default empty)"},
    {"events.zmq.cache", "publish events of this cache only (default: all)"},
    {"events.zmq.events", "form of an event: a list, or a map with names (default maps)"},
    {"events.zmq.hashes",
     "form of a key: its bytes, or its last 8 bytes as a number (default int64)"},
    {"events.zmq.shared",
     "form of the shared tier in events: the medium REMOTE, or STORAGE with the locality REMOTE "
     "(default medium)"},
    {"events.zmq.rank", "the data-parallel rank in events (default 0)"},
    {"events.zmq.kept_batches", "batches kept for replay (default 10000)"},
    {"events.zmq.high_water_mark",
     "messages kept for a slow subscriber; older ones are dropped (default 100000)"},
    {"events.zmq.max_clients",
     "connections per socket; a connection without a subscription gives way to a new one (default "
     "256)"},
    {"record.max_bytes", "size at which the file of --record ends (default 1073741824)"},
    {"transfers.max_queued_jobs", "jobs waiting in the transfer scheduler (default 1024)"},
    {"transfers.staging_bytes",
     "pinned memory for copies between disk and device (default 67108864)"},
    {"transfers.polling_interval_us",
     "with the strategy polling: time between two polls of a device (default 20)"},
    {"transfers.copy_forms.WAY.batch_least_pieces",
     "WAY is load, store or device; fewer pieces are copied one by one (default 4)"},
    {"transfers.copy_forms.WAY.kernel_least_pieces",
     "from this number of pieces on, a kernel copies (default 64; device: 16)"},
    {"transfers.copy_forms.WAY.kernel_most_piece_bytes",
     "a kernel copies pieces up to this average size; 0: no kernel (default load: 28672, store: "
     "0, device: 1048576)"},
    {"transfers.copy_forms.WAY.rows_least_rows",
     "average rows of a strided run from which one two-dimensional copy is used; 0: never "
     "(default 0)"},
    {"shared.user", "user of the store (default none)"},
    {"shared.password_file", "file whose first line is the store's password (default none)"},
    {"shared.tls.ca",
     "PEM file of the authorities to trust for the store's certificate (default the system's)"},
    {"shared.tls.cert", "PEM file with this server's certificate for the store (default none)"},
    {"shared.tls.key", "PEM file with its key"},
    {"shared.connections", "connections per node for values (default 2)"},
    {"shared.timeout_ms",
     "a node is given up if no byte of an answer, or less than 512 KiB of a large one, arrives in "
     "this time (default 1000)"},
    {"shared.max_queued", "values waiting for a node's connections (default 256)"},
    {"shared.match_deadline_us", "how long a match waits for the store (default 2000)"},
    {"shared.touch_interval_ms",
     "with values: shortest time between two reports to the store that a block is in use (default "
     "60000)"},
    {"shared.peer.token_file",
     "file whose first line is a token of role peer, for the other servers (default none)"},
    {"shared.peer.ca",
     "PEM file of the authorities to trust for other servers' certificates; if set, only https:// "
     "URLs are asked, and Unix sockets of unix_users (default the system's)"},
    {"shared.peer.unix_users",
     "users, by name or number, whose Unix sockets are asked in addition to those of the server's "
     "own user; with shared.peer.ca only these users (default none)"},
    {"shared.peer.cert",
     "PEM file with this server's certificate for other servers (default none)"},
    {"shared.peer.key", "PEM file with its key"},
    {"shared.peer.connections", "connections per server (default 2)"},
    {"shared.peer.timeout_ms",
     "a server is given up if no byte of an answer, or less than 512 KiB of a large one, arrives "
     "in this time (default 1000)"},
    {"shared.peer.max_queued", "blocks waiting for a server's connections (default 256)"},
    {"shared.evict_wait_ms",
     "with write on_evict: how long an evicted block waits for its turn to be stored (default "
     "250)"},
    {"shared.s3.bucket", "bucket of an S3 that caches share with other servers (default none)"},
    {"shared.s3.prefix",
     "what the names of its objects begin with; servers with the same one share (default cairn)"},
    {"shared.s3.endpoint",
     "http(s)://HOST[:PORT] of the S3 (default https://s3.REGION.amazonaws.com)"},
    {"shared.s3.region", "region of the signature (default us-east-1)"},
    {"shared.s3.path_style",
     "whether the bucket is part of the path instead of the host (default true with an endpoint)"},
    {"shared.s3.credentials_file",
     "file in the form of ~/.aws/credentials (default the environment's AWS_ACCESS_KEY_ID, then "
     "that file)"},
    {"shared.s3.profile", "profile of that file (default AWS_PROFILE, or default)"},
    {"shared.s3.instance_role",
     "use the keys of the machine's role if there are no others (default false)"},
    {"shared.s3.ca",
     "PEM file of the authorities to trust for the S3's certificate (default the system's)"},
    {"shared.s3.proxy", "URL of a proxy (default the environment's https_proxy)"},
    {"shared.s3.connections", "requests at a time, 1 to 64 (default 8)"},
    {"shared.s3.timeout_ms", "a request is given up if no byte moves in this time (default 5000)"},
    {"shared.s3.max_queued", "blocks waiting to be read or written (default 4096)"},
    {"shared.s3.object_bytes", "blocks are gathered into objects of this size (default 33554432)"},
    {"shared.s3.linger_ms",
     "how long a block waits for others before its object is written (default 500)"},
    {"shared.s3.poll_ms",
     "time between two looks for objects that other servers have added (default 30000)"},
    {"shared.s3.capacity_bytes",
     "size of all objects; above it, those that no server used for longest are removed; 0: no "
     "bound "
     "(default 0)"},
    {"shared.s3.requests_per_s", "requests of this server a second; 0: no bound (default 0)"},
    {"shared.s3.requests_per_day", "requests of this server a day; 0: no bound (default 0)"},
    {"shared.s3.bytes_per_s", "bytes of this server a second, in and out; 0: no bound (default 0)"},
    {"shared.s3.prices.million_puts",
     "price of a million PUT and LIST requests, for the estimate in metrics (default 0)"},
    {"shared.s3.prices.million_gets", "price of a million GET requests (default 0)"},
    {"shared.s3.prices.gib_received", "price of a GiB read (default 0)"},
    {"shared.s3.prices.gib_month", "price of a GiB stored for a month (default 0)"},
    {"groups.host",
     "address at which the other servers of a group reach this one (default 127.0.0.1)"},
    {"groups.collective", "transport of groups whose rank 0 is this server (default local)"},
    {"groups.max_groups", "groups that this server is a rank of (default 16)"},
    {"groups.max_world_size", "ranks of a group (default 64)"},
    {"groups.max_queued_operations", "waiting operations of a group (default 64)"},
    {"groups.max_values", "numbers in one all_reduce (default 4096)"},
    {"groups.join_timeout_ms", "time for every rank to join (default 60000)"},
    {"groups.step_timeout_ms", "time for every rank to do its part of a step (default 30000)"},
    {"groups.piece_bytes", "blocks are sent in pieces of this size (default 8388608)"},
    {"groups.packing_bytes",
     "pinned memory for blocks of tiers that the CPU cannot access (default 67108864)"},
    {"pressure.TIER.elevated",
     "share of a tier's slots at which the level begins; counts slots that cannot be reused at "
     "once (neither free nor evictable) (default 0.8)"},
    {"pressure.TIER.warning", "the same for the next level (default 0.9)"},
    {"pressure.TIER.critical", "the same for the highest level with a share (default 0.97)"},
    {"pressure.TIER.reactions.LEVEL.kind",
     "LEVEL is normal, elevated, warning, critical or out_of_memory; none does nothing; callback "
     "writes a line to the log when the tier enters or leaves the level; shrink evicts when the "
     "slots that are not free reach the level's share, for normal when the tier comes back to it; "
     "empty_cache, for the device tier, returns the device's cached memory when the tier rises to "
     "the level or comes back to normal (default none)"},
    {"pressure.TIER.reactions.LEVEL.target_use",
     "for shrink: evict until at most this share of the slots is not free (default none)"},
    {"pressure.pools.elevated",
     "share of a memory pool's limit in use at which the level begins; for each pool in "
     "GET /v1/system (default 0.8)"},
    {"pressure.pools.warning", "the same for the next level (default 0.9)"},
    {"pressure.pools.critical", "the same for the highest level with a share (default 0.97)"},
    {"pressure.pools.reactions.LEVEL.kind",
     "as for tiers; shrink gives back the memory that the pool keeps for reuse (default none)"},
    {"caches",
     "caches to make at the start: objects with a name and the body of PUT /v1/caches/NAME "
     "(default: one named default)"},
};

}  // namespace

std::span<const Setting> all_settings() { return kSettings; }

std::string variable_of(std::string_view flag) {
  std::string name = "CAIRN_" + std::string(flag);
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(c));
  return name;
}

bool stands_for(std::string_view field, std::string_view path) {
  const auto first = [](std::string_view text) { return text.substr(0, text.find('.')); };
  while (!field.empty() && !path.empty()) {
    const std::string_view name = first(field);
    const bool several = std::ranges::all_of(name, [](char c) { return c >= 'A' && c <= 'Z'; });
    if (!several && name != first(path)) return false;
    // `pressure` has the memory pools beside the tiers.
    if (name == "TIER" && std::ranges::find(kTierWords, first(path)) == kTierWords.end())
      return false;
    field.remove_prefix(std::min(name.size() + 1, field.size()));
    path.remove_prefix(std::min(first(path).size() + 1, path.size()));
  }
  return field.empty() && path.empty();
}

std::string list_settings() {
  const std::vector<FieldNote> notes = setting_notes();
  auto list = nlohmann::ordered_json::array();
  for (const Setting& setting : kSettings) {
    const auto note = std::ranges::find_if(
        notes, [&](const FieldNote& known) { return stands_for(setting.field, known.path); });
    CAIRN_ASSERT(note != notes.end(), std::string(setting.field) + " is no setting");
    list.push_back({{"field", setting.field},
                    {"flag", setting.flag == nullptr ? "" : setting.flag},
                    {"variable", setting.flag == nullptr ? "" : variable_of(setting.flag)},
                    {"takes", note->takes},
                    {"help", setting.help}});
  }
  return list.dump(1) + "\n";
}

}  // namespace cairn
