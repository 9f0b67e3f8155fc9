#include "ctl/command.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <iostream>
#include <sstream>

namespace cairn::ctl {
namespace {

constexpr std::array kCommands = {
    Command{"health", "", "", "check that the server is alive; needs no token", health},
    Command{"status", "", "", "the server's state, devices and load", status},
    Command{"caches list", "", "", "every cache, with the use of its tiers", list_caches},
    Command{"caches show", "CACHE", "", "one cache, tier by tier", show_cache},
    Command{"caches create", "CACHE FILE", "",
            "make a cache from a JSON body (- reads it from stdin)", create_cache},
    Command{"caches change", "CACHE FILE", "",
            "change settings, from a JSON body with the new values (- reads it from stdin)",
            change_cache},
    Command{"caches resize", "CACHE TIER BLOCKS", "",
            "set the number of blocks of a pinned or disk tier; blocks that fit stay",
            resize_cache},
    Command{"caches delete", "CACHE", "force ", "drop a cache with all its blocks", delete_cache},
    Command{"caches clear", "CACHE", "tier ", "drop every block that no lease holds", clear_cache},
    Command{"match", "CACHE KEY...", "lease-ms have ",
            "the longest stored prefix of the keys (default: without a lease)", match},
    Command{"put", "CACHE KEY FILE",
            "parent tier ttl-ms priority metadata if-exists kv-group shard shards ",
            "store a file's bytes under a key (- reads stdin)", put},
    Command{"get", "CACHE KEY", "output kv-group shard shards ",
            "a block's bytes (default: to stdout)", get},
    Command{"delete", "CACHE KEY...", "kv-group ", "drop these keys from every tier", delete_keys},
    Command{"blocks list", "CACHE", "tier state limit cursor ", "slots, with their keys and states",
            list_blocks},
    Command{"leases list", "CACHE", "limit cursor ", "leases, with number of blocks and end",
            list_leases},
    Command{"leases end", "LEASE", "", "end a lease and release its blocks", end_lease},
    Command{"actions", "CACHE TYPE TARGET...", "session tier ttl-ms priority ",
            "pin, unpin, retain, prefetch, demote or share these keys", act},
    Command{"pins list", "CACHE", "limit cursor ", "pins, with number of blocks and end",
            list_pins},
    Command{"pins end", "PIN", "", "end a pin: its blocks may be evicted", end_pin},
    Command{"sessions", "CACHE", "limit ", "conversations, the latest first, with their blocks",
            list_sessions},
    Command{"transfers list", "", "cache state limit cursor ", "transfers, oldest first",
            list_transfers},
    Command{"transfers start", "CACHE TIER KEY...", "move no-wait ", "copy blocks to a tier",
            start_transfer},
    Command{"advise", "CACHE", "", "what more memory or another order of eviction would gain",
            advise},
    Command{"drain", "CACHE", "tier no-wait ", "move every block to a tier (default: the lowest)",
            drain},
    Command{"pending", "CACHE", "limit cursor ",
            "blocks on their way to another tier, with their age", list_pending},
    Command{"transfers show", "TRANSFER", "", "progress of a transfer", show_transfer},
    Command{"transfers cancel", "TRANSFER", "", "cancel the part that has not begun",
            cancel_transfer},
    Command{"snapshots list", "CACHE", "", "the snapshots of a cache", list_snapshots},
    Command{"snapshots make", "CACHE NAME", "compress no-wait ", "save every block to a file",
            make_snapshot},
    Command{"snapshots restore", "CACHE NAME", "partial replace no-wait ", "restore the blocks",
            restore_snapshot},
    Command{"snapshots delete", "CACHE NAME", "", "delete a snapshot", delete_snapshot},
    Command{"agents list", "", "", "engines that registered memory", list_engine_memories},
    Command{"agents end", "AGENT", "", "end an agent, after its running copies", end_engine_memory},
    Command{"groups list", "", "", "groups of servers that this one has joined", list_groups},
    Command{"devices list", "", "", "memory of each device, by allocator", list_devices},
    Command{"devices empty", "DEVICE", "", "return cached memory to the driver", empty_device},
    Command{"devices reset-peaks", "DEVICE", "", "reset the peaks", reset_device},
    Command{"top", "", "interval-ms count ", "rates of every cache, updated continuously", top},
    Command{"events", "", "cache ", "what is stored and removed, as it happens, in lines of JSON",
            follow_events},
    Command{"size", "FILE", "tokens conversations value-bytes ",
            "memory for conversations of a model, from its config.json (- reads stdin)", size},
    Command{"completion bash", "", "", "print the completion: source <(cairnctl completion bash)",
            bash_completion},
    Command{"completion zsh", "", "", "the same: source <(cairnctl completion zsh)",
            zsh_completion},
    Command{"completion fish", "", "", "the same: cairnctl completion fish | source",
            fish_completion},
};

constexpr std::array kOptions = {
    Option{"force", nullptr, false, "even if leases hold blocks"},
    Option{"lease-ms", "N", true, "pin the matched blocks for this time"},
    Option{"have", "N", true, "leading keys whose full blocks the caller has itself"},
    Option{"kv-group", "NAME", false, "the block's KV group (default: default)"},
    Option{"shard", "N", true, "only this part of the block, from 0 on"},
    Option{"shards", "N", true, "the number of parts, with --shard"},
    Option{"parent", "KEY", false, "the key before it in its prefix"},
    Option{"tier", "TIER", false,
           "device, pinned or disk (default: the highest; to clear and to list: all)"},
    Option{"ttl-ms", "N", true, "drop the key after this time"},
    Option{"priority", "N", true, "0 to 100; lower is evicted first (default 50)"},
    Option{"metadata", "JSON", false, "an object stored with the key"},
    Option{"if-exists", "WORD", false, "duplicate (default) or error"},
    Option{"output", "FILE", false, "write to this file instead of stdout"},
    Option{"session", nullptr, false, "the target is the name of a conversation"},
    Option{"move", nullptr, false, "drop the source copies"},
    Option{"no-wait", nullptr, false, "print the transfer's id and exit"},
    Option{"compress", nullptr, false, "compress with zstd"},
    Option{"partial", nullptr, false, "restore as much as fits, whole prefixes"},
    Option{"replace", nullptr, false, "drop the cache's blocks first, all or nothing"},
    Option{"cache", "CACHE", false, "only this cache"},
    Option{
        "state", "STATE", false,
        "only this state, of a transfer: queued, running, done, failed or cancelled; of a block: "
        "allocated, committed or evictable"},
    Option{"limit", "N", true, "entries per call (default 100)"},
    Option{"cursor", "CURSOR", false, "continue where the last list ended"},
    Option{"tokens", "N", true, "tokens of a conversation (default 8000)"},
    Option{"conversations", "N", true, "number of conversations (default 100)"},
    Option{"value-bytes", "N", true,
           "bytes of a value, for a quantized cache (default: of the model's type)"},
    Option{"interval-ms", "N", true, "time between updates (default 1000)"},
    Option{"count", "N", true, "exit after this many updates (default: never)"},
};

constexpr std::array kCommonOptions = {
    Option{"server", "URL", false,
           "http://HOST:PORT, https://HOST:PORT or unix:/PATH (default $CAIRN_SERVER, else "
           "http://127.0.0.1:7070)"},
    Option{"token", "TEXT", false, "bearer token (default $CAIRN_TOKEN)"},
    Option{"ca", "FILE", false,
           "authority of the server's certificate (default $CAIRN_CA, else the system's)"},
    Option{"cert", "FILE", false, "client certificate, if the server requires one"},
    Option{"key", "FILE", false, "its key"},
    Option{"any-certificate", nullptr, false,
           "do not check the server's certificate: for a server on this machine only"},
    Option{"timeout-ms", "N", true, "longest wait for a byte of a response (default 90000)"},
    Option{"json", nullptr, false, "print the server's response"},
    Option{"help", nullptr, false, "print this and exit"},
    Option{"version", nullptr, false, "print the version and exit"},
};

}  // namespace

std::span<const Command> commands() { return kCommands; }
std::span<const Option> options() { return kOptions; }
std::span<const Option> common_options() { return kCommonOptions; }

std::size_t Command::min_words() const {
  if (words.empty()) return 0;
  return static_cast<std::size_t>(std::count(words.begin(), words.end(), ' ')) + 1;
}

std::uint64_t Arguments::number(const std::string& option, std::uint64_t fallback) const {
  const auto at = options.find(option);
  if (at != options.end()) {
    std::from_chars(at->second.data(), at->second.data() + at->second.size(), fallback);
  }
  return fallback;
}

std::string Arguments::text(const std::string& option) const {
  const auto at = options.find(option);
  return at == options.end() ? std::string() : at->second;
}

std::string Session::cache_path(std::string_view rest) const {
  return "/v1/caches/" + client::percent_encoded(word(0)) + std::string(rest);
}

std::string Session::query(std::span<const std::string_view> names) const {
  std::string text;
  for (const std::string_view name : names) {
    if (!arguments.has(std::string(name))) continue;
    std::string parameter(name);
    std::ranges::replace(parameter, '-', '_');
    text.append(text.empty() ? "?" : "&").append(parameter).append("=");
    text.append(client::percent_encoded(arguments.text(std::string(name))));
  }
  return text;
}

bool Session::print_json(const json& document) const {
  if (arguments.json) out << document.dump(2) << "\n";
  return arguments.json;
}

Answer<std::string> read_all(const std::string& path) {
  std::ostringstream text;
  if (path == "-") {
    text << std::cin.rdbuf();
    return std::move(text).str();
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return local_failure("'" + path + "' cannot be read");
  text << file.rdbuf();
  return std::move(text).str();
}

ClientError local_failure(std::string detail) { return {0, "local", std::move(detail)}; }

}  // namespace cairn::ctl
