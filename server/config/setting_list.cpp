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
  add("http.max_write_header_bytes",
      "the JSON in front of a bulk write's blocks (default 4194304)");
  add("blocks.max_caches", "caches (default 64)");
  add("blocks.max_held_blocks",
      "blocks that all leases of a cache hold, each as often as it is held (default 16777216)");
  add("blocks.max_transfers", "transfers that have not ended; more are a 429 (default 4096)");
  add("blocks.kept_transfers", "ended transfers that can still be asked about (default 4096)");
  add("blocks.max_waiting_allocations",
      "allocations of a tier that wait for blocks to be offloaded (default 1024)");
  add("blocks.max_metadata_bytes", "metadata of a block, as JSON (default 4096)");
  add("blocks.max_history_bytes",
      "what a cache whose order of eviction learns remembers of blocks that are gone, 13 bytes "
      "each "
      "(default 67108864)");
  add("blocks.populate_threads",
      "threads that take the pages of pinned tiers before their first use, half of their time at "
      "most, "
      "while memory is free; 0: none (default 4)");
  add("blocks.max_snapshots", "snapshots of a cache (default 64)");
  add("blocks.max_snapshot_jobs", "snapshots made or restored at once (default 4)");
  add("import.max_bytes",
      "host memory of engines that agents and imported tiers may lie in, all together; 0: half of "
      "what is available at the start (default 0)");
  add("disk.depth", "pieces that io_uring has under way at once (default 128)");
  add("disk.piece_bytes",
      "longer runs are cut into pieces of this; a multiple of 4096 (default 1048576)");
  add("disk.folders",
      "where slot files lie, each cache's slots dealt out over all of them (default: the folder "
      "disk of the data directory)");
  add("disk.direct", "past the page cache, where the file system can (default true)");
  add("disk.checksums",
      "compare every read with its checksum; false: only the first read after a restart (default "
      "true)");
  add("disk.replace_other_shape",
      "make a slot file that holds another shape anew, empty, instead of refusing it, and take a "
      "disk folder that has lost its mark for a new one (default false)");
  add("disk.register_buffers", "register pinned memory with io_uring (default true)");
  add("disk.offload_at_stop",
      "a clean end brings the blocks of device and pinned tiers to disk first (default false)");
  add("disk.crash_at", "for tests: the place where the process kills itself (default none)");
  add("events.zmq.topic", "the topic; {cache} in it stands for the cache's name (default empty)");
  add("events.zmq.cache", "the one cache that is told of (default: all)");
  add("events.zmq.events", "form of an event: a list, or a map with names (default maps)");
  add("events.zmq.hashes", "form of a key: its bytes, or a number of its last 8 (default int64)");
  add("events.zmq.shared",
      "form of a place in the shared tier: the medium REMOTE, or STORAGE with the locality REMOTE "
      "(default medium)");
  add("events.zmq.rank", "the data-parallel rank that events name (default 0)");
  add("events.zmq.kept_batches", "batches kept for replay (default 10000)");
  add("events.zmq.high_water_mark",
      "messages kept for a slow subscriber; older ones are dropped (default 100000)");
  add("events.zmq.max_clients",
      "connections of each of the two sockets; one that wants nothing gives way (default 256)");
  add("record.max_bytes", "where the file of --record ends (default 1073741824)");
  add("transfers.max_queued_jobs", "jobs of the transfer engine that wait (default 1024)");
  add("transfers.staging_bytes",
      "pinned memory through which disk and device exchange blocks (default 67108864)");
  add("transfers.polling_interval_us",
      "with the strategy polling: how often a device is asked whether it is done (default 20)");
  add("transfers.copy_forms.WAY.batch_least_pieces",
      "WAY is load, store or device; fewer pieces are copied one by one (default 4)");
  add("transfers.copy_forms.WAY.kernel_least_pieces",
      "a kernel copies so many pieces and more (default 64; device: 16)");
  add("transfers.copy_forms.WAY.kernel_most_piece_bytes",
      "of this average size at most; 0: no kernel (default load: 28672, store: 0, device: "
      "1048576)");
  add("transfers.copy_forms.WAY.rows_least_rows",
      "rows of a strided run on average, for one two-dimensional copy; 0: never (default 0)");
  add("shared.user", "user of the store, where it has users (default none)");
  add("shared.password_file", "file whose first line is its password (default none)");
  add("shared.tls.ca",
      "PEM file of the authorities that sign its certificate (default the system's)");
  add("shared.tls.cert", "PEM file with a certificate for the store to see (default none)");
  add("shared.tls.key", "PEM file with its key");
  add("shared.connections", "connections for values, a node (default 2)");
  add("shared.timeout_ms",
      "without a byte of an answer, or 512 KiB of a large one, a node is given up (default 1000)");
  add("shared.max_queued", "values that wait for a node's connections (default 256)");
  add("shared.match_deadline_us", "how long a match waits for the store's word (default 2000)");
  add("shared.touch_interval_ms",
      "with values: so often, at most, the store is told that a block is in use (default 60000)");
  add("shared.peer.token_file",
      "file whose first line is a token of role peer, for the other servers (default none)");
  add("shared.peer.ca",
      "PEM file of the authorities that sign their certificates; with it only https:// is asked, "
      "and Unix sockets of unix_users (default the system's)");
  add("shared.peer.unix_users",
      "whose Unix sockets are asked, by name or number, beside those of the server's own user; "
      "with "
      "shared.peer.ca these alone (default none)");
  add("shared.peer.cert", "PEM file with a certificate for them to see (default none)");
  add("shared.peer.key", "PEM file with its key");
  add("shared.peer.connections", "connections, a server (default 2)");
  add("shared.peer.timeout_ms",
      "without a byte of an answer, or 512 KiB of a large one, a server is given up (default "
      "1000)");
  add("shared.peer.max_queued", "blocks that wait for a server's connections (default 256)");
  add("shared.evict_wait_ms",
      "how long a block that makes room waits for its turn to be stored, with write on_evict "
      "(default 250)");
  add("groups.host", "address that the other servers of a group reach (default 127.0.0.1)");
  add("groups.collective", "what rank 0 makes groups of (default local)");
  add("groups.max_groups", "groups that this server is a rank of (default 16)");
  add("groups.max_world_size", "ranks of a group (default 64)");
  add("groups.max_queued_operations", "operations of a group that wait (default 64)");
  add("groups.max_values", "numbers of one all_reduce (default 4096)");
  add("groups.join_timeout_ms", "until every rank is there (default 60000)");
  add("groups.step_timeout_ms", "until every rank has done its part of a step (default 30000)");
  add("groups.piece_bytes", "blocks are sent in pieces of this (default 8388608)");
  add("groups.packing_bytes",
      "pinned memory for blocks of tiers that the CPU does not reach (default 67108864)");
  add("pressure.TIER.elevated",
      "the level that begins where this share of a tier's slots cannot be reused at once: neither "
      "free nor evictable (default 0.8)");
  add("pressure.TIER.warning", "the same, of the next level (default 0.9)");
  add("pressure.TIER.critical", "the same, of the highest level that has a share (default 0.97)");
  add("pressure.TIER.reactions.LEVEL.kind",
      "of elevated, warning, critical or out_of_memory: callback writes a line to the log when "
      "the level is entered or left, shrink evicts when the slots that are not free reach its "
      "share (default none)");
  add("pressure.TIER.reactions.LEVEL.target_use",
      "shrink: evict until at most this share of the slots is not free (default none)");
  add("caches",
      "caches to make at the start: objects with a name and the body of PUT "
      "/v1/caches/NAME (default: one named default)");
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
