#include "ctl/command.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <ostream>

namespace cairn::ctl {
namespace {

constexpr std::array kCommands = {
    Command{"health", "", "", "whether the server lives; no token is needed", health},
    Command{"status", "", "", "the server's state, devices and load", status},
    Command{"caches list", "", "", "every cache, with what its tiers hold", list_caches},
    Command{"caches show", "CACHE", "", "one cache, tier by tier", show_cache},
    Command{"caches create", "CACHE FILE", "", "make one of a JSON body (- reads it from stdin)",
            create_cache},
    Command{"caches change", "CACHE FILE", "",
            "other settings, from a JSON body with those to change (- reads it from stdin)",
            change_cache},
    Command{"caches resize", "CACHE TIER BLOCKS", "",
            "give a pinned or disk tier so many blocks; what still fits stays", resize_cache},
    Command{"caches delete", "CACHE", "force ", "drop one with all its blocks", delete_cache},
    Command{"match", "CACHE KEY...", "lease-ms ",
            "the longest prefix of the keys that is there (without a lease unless told)", match},
    Command{"put", "CACHE KEY FILE", "parent tier ttl-ms priority metadata if-exists ",
            "store a file's bytes under a key (- reads stdin)", put},
    Command{"get", "CACHE KEY", "output ", "a block's bytes, to stdout unless told", get},
    Command{"leases list", "CACHE", "limit cursor ", "who holds how many of its blocks, until when",
            list_leases},
    Command{"leases end", "LEASE", "", "give up all that it holds", end_lease},
    Command{"transfers list", "", "cache state limit cursor ", "movements, the oldest first",
            list_transfers},
    Command{"transfers start", "CACHE TIER KEY...", "move no-wait ", "bring blocks to a tier",
            start_transfer},
    Command{"advise", "CACHE", "",
            "what more memory would give, and what another order of eviction", advise},
    Command{"drain", "CACHE", "tier no-wait ", "bring every block to a tier (default: the lowest)",
            drain},
    Command{"pending", "CACHE", "limit cursor ",
            "blocks that wait to leave their tier, and since when", list_pending},
    Command{"transfers show", "TRANSFER", "", "how far a movement is", show_transfer},
    Command{"transfers cancel", "TRANSFER", "", "end what has not begun of it", cancel_transfer},
    Command{"snapshots list", "CACHE", "", "the snapshots of a cache", list_snapshots},
    Command{"snapshots make", "CACHE NAME", "compress no-wait ", "keep every block in a file",
            make_snapshot},
    Command{"snapshots restore", "CACHE NAME", "partial no-wait ", "bring the blocks back",
            restore_snapshot},
    Command{"snapshots delete", "CACHE NAME", "", "forget one", delete_snapshot},
    Command{"agents list", "", "", "engines that have registered memory", list_agents},
    Command{"agents end", "AGENT", "", "end one; what it has begun to copy is waited for",
            end_agent},
    Command{"devices list", "", "", "what each device's memory has, by allocator", list_devices},
    Command{"devices empty", "DEVICE", "", "give its cached memory back to the driver",
            empty_device},
    Command{"devices reset-peaks", "DEVICE", "", "count its peaks anew", reset_device},
    Command{"top", "", "interval-ms count ", "rates of every cache, again and again", top},
    Command{"completion bash", "", "", "print the completion: source <(cairnctl completion bash)",
            bash_completion},
};

constexpr std::array kOptions = {
    Option{"force", nullptr, false, "although leases hold blocks"},
    Option{"lease-ms", "N", true, "pin what matches for so long"},
    Option{"parent", "KEY", false, "the key before it in its prefix"},
    Option{"tier", "TIER", false, "device, pinned or disk (default: the highest)"},
    Option{"ttl-ms", "N", true, "forget the key after so long"},
    Option{"priority", "N", true, "0 to 100; lower is evicted first (default 50)"},
    Option{"metadata", "JSON", false, "an object that is kept with the key"},
    Option{"if-exists", "WORD", false, "duplicate (default) or error"},
    Option{"output", "FILE", false, "write there instead of to stdout"},
    Option{"move", nullptr, false, "the source copies go"},
    Option{"no-wait", nullptr, false, "say which transfer it is, and end"},
    Option{"compress", nullptr, false, "with zstd"},
    Option{"partial", nullptr, false, "as much as finds room, whole prefixes"},
    Option{"cache", "CACHE", false, "only those of this cache"},
    Option{"state", "STATE", false, "only queued, running, done, failed or cancelled ones"},
    Option{"limit", "N", true, "so many at once (default 100)"},
    Option{"cursor", "CURSOR", false, "go on where a list ended"},
    Option{"interval-ms", "N", true, "between two looks (default 1000)"},
    Option{"count", "N", true, "end after so many looks (default: never)"},
};

constexpr std::array kCommonOptions = {
    Option{"server", "URL", false,
           "http://HOST:PORT, https://HOST:PORT or unix:/PATH (default $CAIRN_SERVER, else "
           "http://127.0.0.1:7070)"},
    Option{"token", "TEXT", false, "bearer token (default $CAIRN_TOKEN)"},
    Option{"ca", "FILE", false,
           "who signed the server's certificate (default $CAIRN_CA, else the system's)"},
    Option{"cert", "FILE", false, "certificate of our own, where the server wants one"},
    Option{"key", "FILE", false, "its key"},
    Option{"any-certificate", nullptr, false,
           "believe whoever answers: for a server on this machine only"},
    Option{"timeout-ms", "N", true, "longest wait for a byte of an answer (default 90000)"},
    Option{"json", nullptr, false, "print what the server answers"},
    Option{"help", nullptr, false, "print this and end"},
    Option{"version", nullptr, false, "print the version and end"},
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

ClientError local_failure(std::string detail) { return {0, "local", std::move(detail)}; }

}  // namespace cairn::ctl
