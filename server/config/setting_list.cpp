#include "server/config/setting_list.hpp"

#include <algorithm>

#include "base/assert.hpp"
#include "server/config/settings.hpp"

namespace cairn {

std::vector<SettingHelp> file_settings() {
  std::vector<SettingHelp> all;
  const auto add = [&all](const char* field, const char* help) {
    all.push_back({.field = field, .help = help});
  };
  add("http.max_write_header_bytes", "size of the JSON header of a bulk write (default 4194304)");
  add("blocks.max_caches", "number of caches (default 64)");
  add("blocks.max_held_blocks",
      "blocks that all leases of a cache hold; a block counts as often as it is held (default "
      "16777216)");
  add("blocks.max_transfers",
      "transfers that have not ended; above it requests get 429 (default 4096)");
  add("blocks.kept_transfers", "ended transfers that can still be queried (default 4096)");
  add("blocks.max_waiting_allocations",
      "allocations of a tier that wait for offloads (default 1024)");
  add("blocks.max_metadata_bytes", "metadata of a block, as JSON (default 4096)");
  add("blocks.max_history_bytes",
      "memory in which a learning order of eviction remembers evicted blocks, 13 bytes each "
      "(default 67108864)");
  add("blocks.populate_threads",
      "threads that allocate the pages of pinned tiers before first use, at most half of their "
      "time, while memory is free; 0: none (default 4)");
  add("blocks.max_snapshots", "snapshots of a cache (default 64)");
  add("blocks.max_snapshot_jobs", "snapshots saved or restored at once (default 4)");
  add("import.max_bytes",
      "host memory of engines that all agents and imported tiers together may use; 0: half of the "
      "memory available at the start (default 0)");
  add("disk.depth", "I/O operations that io_uring runs at once (default 128)");
  add("disk.piece_bytes",
      "longer reads and writes are split into pieces of this size; a multiple of 4096 (default "
      "1048576)");
  add("disk.folders",
      "folders for slot files; each cache's slots are spread over all of them (default: the folder "
      "disk of the data directory)");
  add("disk.direct", "bypass the page cache if the file system supports it (default true)");
  add("disk.checksums",
      "compare every read with its checksum; false: only the first read after a restart (default "
      "true)");
  add("disk.replace_other_shape",
      "replace a slot file of another shape by an empty one instead of refusing it, and accept a "
      "disk folder that has lost its mark as a new one (default false)");
  add("disk.register_buffers", "register pinned memory with io_uring (default true)");
  add("disk.offload_at_stop",
      "a clean stop first writes the blocks of device and pinned tiers to disk (default false)");
  add("disk.crash_at", "for tests: where the process kills itself (default none)");
  add("events.zmq.topic",
      "the topic; {cache} in it is replaced by the cache's name (default empty)");
  add("events.zmq.cache", "publish events of this cache only (default: all)");
  add("events.zmq.events", "form of an event: a list, or a map with names (default maps)");
  add("events.zmq.hashes",
      "form of a key: its bytes, or its last 8 bytes as a number (default int64)");
  add("events.zmq.shared",
      "form of the shared tier in events: the medium REMOTE, or STORAGE with the locality REMOTE "
      "(default medium)");
  add("events.zmq.rank", "the data-parallel rank in events (default 0)");
  add("events.zmq.kept_batches", "batches kept for replay (default 10000)");
  add("events.zmq.high_water_mark",
      "messages kept for a slow subscriber; older ones are dropped (default 100000)");
  add("events.zmq.max_clients",
      "connections per socket; a connection without a subscription gives way to a new one (default "
      "256)");
  add("record.max_bytes", "size at which the file of --record ends (default 1073741824)");
  add("transfers.max_queued_jobs", "jobs waiting in the transfer scheduler (default 1024)");
  add("transfers.staging_bytes",
      "pinned memory for copies between disk and device (default 67108864)");
  add("transfers.polling_interval_us",
      "with the strategy polling: time between two polls of a device (default 20)");
  add("transfers.copy_forms.WAY.batch_least_pieces",
      "WAY is load, store or device; fewer pieces are copied one by one (default 4)");
  add("transfers.copy_forms.WAY.kernel_least_pieces",
      "from this number of pieces on, a kernel copies (default 64; device: 16)");
  add("transfers.copy_forms.WAY.kernel_most_piece_bytes",
      "a kernel copies pieces up to this average size; 0: no kernel (default load: 28672, store: "
      "0, device: 1048576)");
  add("transfers.copy_forms.WAY.rows_least_rows",
      "average rows of a strided run from which one two-dimensional copy is used; 0: never "
      "(default 0)");
  add("shared.user", "user of the store (default none)");
  add("shared.password_file", "file whose first line is the store's password (default none)");
  add("shared.tls.ca",
      "PEM file of the authorities to trust for the store's certificate (default the system's)");
  add("shared.tls.cert", "PEM file with this server's certificate for the store (default none)");
  add("shared.tls.key", "PEM file with its key");
  add("shared.connections", "connections per node for values (default 2)");
  add("shared.timeout_ms",
      "a node is given up if no byte of an answer, or less than 512 KiB of a large one, arrives in "
      "this time (default 1000)");
  add("shared.max_queued", "values waiting for a node's connections (default 256)");
  add("shared.match_deadline_us", "how long a match waits for the store (default 2000)");
  add("shared.touch_interval_ms",
      "with values: shortest time between two reports to the store that a block is in use (default "
      "60000)");
  add("shared.peer.token_file",
      "file whose first line is a token of role peer, for the other servers (default none)");
  add("shared.peer.ca",
      "PEM file of the authorities to trust for other servers' certificates; if set, only https:// "
      "URLs are asked, and Unix sockets of unix_users (default the system's)");
  add("shared.peer.unix_users",
      "users, by name or number, whose Unix sockets are asked in addition to those of the server's "
      "own user; with shared.peer.ca only these users (default none)");
  add("shared.peer.cert",
      "PEM file with this server's certificate for other servers (default none)");
  add("shared.peer.key", "PEM file with its key");
  add("shared.peer.connections", "connections per server (default 2)");
  add("shared.peer.timeout_ms",
      "a server is given up if no byte of an answer, or less than 512 KiB of a large one, arrives "
      "in this time (default 1000)");
  add("shared.peer.max_queued", "blocks waiting for a server's connections (default 256)");
  add("shared.evict_wait_ms",
      "with write on_evict: how long an evicted block waits for its turn to be stored (default "
      "250)");
  add("groups.host",
      "address at which the other servers of a group reach this one (default 127.0.0.1)");
  add("groups.collective", "transport of groups whose rank 0 is this server (default local)");
  add("groups.max_groups", "groups that this server is a rank of (default 16)");
  add("groups.max_world_size", "ranks of a group (default 64)");
  add("groups.max_queued_operations", "waiting operations of a group (default 64)");
  add("groups.max_values", "numbers in one all_reduce (default 4096)");
  add("groups.join_timeout_ms", "time for every rank to join (default 60000)");
  add("groups.step_timeout_ms", "time for every rank to do its part of a step (default 30000)");
  add("groups.piece_bytes", "blocks are sent in pieces of this size (default 8388608)");
  add("groups.packing_bytes",
      "pinned memory for blocks of tiers that the CPU cannot access (default 67108864)");
  add("pressure.TIER.elevated",
      "share of a tier's slots at which the level begins; counts slots that cannot be reused at "
      "once (neither free nor evictable) (default 0.8)");
  add("pressure.TIER.warning", "the same for the next level (default 0.9)");
  add("pressure.TIER.critical", "the same for the highest level with a share (default 0.97)");
  add("pressure.TIER.reactions.LEVEL.kind",
      "LEVEL is elevated, warning, critical or out_of_memory; callback writes a line to the log "
      "when the tier enters or leaves the level; shrink evicts when the slots that are not free "
      "reach the level's share (default none)");
  add("pressure.TIER.reactions.LEVEL.target_use",
      "for shrink: evict until at most this share of the slots is not free (default none)");
  add("caches",
      "caches to make at the start: objects with a name and the body of PUT /v1/caches/NAME "
      "(default: one named default)");
  return all;
}

bool stands_for(std::string_view field, std::string_view path) {
  const auto first = [](std::string_view text) { return text.substr(0, text.find('.')); };
  while (!field.empty() && !path.empty()) {
    const std::string_view name = first(field);
    const bool several = std::ranges::all_of(name, [](char c) { return c >= 'A' && c <= 'Z'; });
    if (!several && name != first(path)) return false;
    field.remove_prefix(std::min(name.size() + 1, field.size()));
    path.remove_prefix(std::min(first(path).size() + 1, path.size()));
  }
  return field.empty() && path.empty();
}

std::string list_settings(std::span<const SettingHelp> settings) {
  const std::vector<FieldNote> notes = setting_notes();
  auto list = nlohmann::ordered_json::array();
  for (const SettingHelp& setting : settings) {
    const auto note = std::ranges::find_if(
        notes, [&](const FieldNote& known) { return stands_for(setting.field, known.path); });
    CAIRN_ASSERT(note != notes.end(), setting.field + " is no setting");
    list.push_back({{"field", setting.field},
                    {"flag", setting.flag},
                    {"variable", setting.variable},
                    {"takes", note->takes},
                    {"help", setting.help}});
  }
  return list.dump(1) + "\n";
}

}  // namespace cairn
