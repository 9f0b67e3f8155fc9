#include "server/config/command_line.hpp"

#include <algorithm>
#include <boost/program_options.hpp>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>

#include "base/version.hpp"
#include "server/codec/document.hpp"
#include "server/config/setting_list.hpp"
#include "server/config/variables.hpp"

namespace cairn {
namespace {

namespace po = boost::program_options;

// A flag is another way to set a field of the file, so both have the same rules and defaults.
enum class FlagKind : std::uint8_t { text, number, yes, paths, names };
using enum FlagKind;

struct Flag {
  const char* name;
  const char* field;  // JSON pointer
  FlagKind kind;
  const char* help;
};

constexpr std::array kFlags = {
    Flag{"listen", "/listen", text,
         "HOST:PORT to listen on; port 0 takes any free port (default 127.0.0.1:7070)"},
    Flag{"unix", "/unix", text, "path of a Unix socket to listen on too (default none)"},
    Flag{"unix-group", "/unix_group", text,
         "group whose members may use the Unix socket (default none: the server's user and root)"},
    Flag{"unix-users", "/unix_users", names,
         "users, by name or number, separated by ',', who may use the Unix socket (default none)"},
    Flag{"allowed-hosts", "/http/allowed_hosts", names,
         "names and addresses, separated by ',', of this server in addition to localhost and its "
         "own addresses; *.NAME stands for all names below NAME, * for any (default none)"},
    Flag{"tokens", "/tokens", text,
         "file of bearer tokens, read again on SIGHUP (default none: everybody may do everything)"},
    Flag{"allow-anonymous", "/allow_anonymous", yes,
         "listen on other addresses than loopback without tokens"},
    Flag{"tls-cert", "/tls_cert", text,
         "PEM file with the certificate and its chain, read again on SIGHUP (default none: HTTP)"},
    Flag{"tls-key", "/tls_key", text, "PEM file with its key"},
    Flag{"tls-client-ca", "/tls_client_ca", text,
         "PEM file of authorities; clients then need a certificate signed by one of them (default "
         "none)"},
    Flag{"data-dir", "/data_dir", text,
         "folder of the disk tiers, created if missing, locked while in use (default cairn-data)"},
    Flag{"known-data-dir", "/known_data_dir", yes,
         "do not start with a data directory that no server has used, for example because its file "
         "system is not mounted"},
    Flag{"import-folders", "/import/folders", paths,
         "folders, separated by ':', of the files that a cache may import as its memory (default "
         "none)"},
    Flag{"runtime", "/runtime", text,
         "auto, host or cuda; auto takes cuda if a device responds (default auto)"},
    Flag{"threads", "/threads", number, "network threads, 1 to 256 (default 1)"},
    Flag{"log-level", "/log_level", text, "debug, info, warning or error (default info)"},
    Flag{"log-format", "/log_format", text,
         "format of log lines: logfmt (name=value) or json (one object per line) (default logfmt)"},
    Flag{"drain-delay-ms", "/drain_delay_ms", number,
         "how long a shutdown keeps serving after /readyz returns 503 (default 0)"},
    Flag{"drain-timeout-ms", "/drain_timeout_ms", number,
         "how long a shutdown waits for requests in progress (default 10000)"},
    Flag{"host-devices", "/host/devices", number,
         "devices of the host runtime, 1 to 64 (default 1)"},
    Flag{"host-device-bytes", "/host/device_bytes", number,
         "memory of each of them; 0: no limit (default 0)"},
    Flag{"max-connections", "/http/max_connections", number,
         "TCP connections at once; above it idle ones are closed, then requests are refused "
         "(default 4096)"},
    Flag{"max-header-bytes", "/http/max_header_bytes", number,
         "size of a request's line and headers (default 16384)"},
    Flag{"max-body-bytes", "/http/max_body_bytes", number,
         "size of a JSON or MessagePack body (default 33554432)"},
    Flag{"header-timeout-ms", "/http/header_timeout_ms", number,
         "time from a request's first byte to the end of its headers (default 10000)"},
    Flag{"body-timeout-ms", "/http/body_timeout_ms", number,
         "time without a byte of a body received or sent (default 30000)"},
    Flag{"least-rate-bytes-per-s", "/http/least_rate_bytes_per_s", number,
         "lowest rate of a body or a response once body-timeout-ms is used up (default 262144)"},
    Flag{"idle-timeout-ms", "/http/idle_timeout_ms", number,
         "time between requests (default 120000)"},
    Flag{"max-lease-ms", "/blocks/max_lease_ms", number,
         "longest lease that a client may request (default 3600000)"},
    Flag{"max-leases", "/blocks/max_leases", number, "leases of a cache (default 65536)"},
    Flag{"max-leased-blocks-per-token", "/blocks/max_leased_blocks_per_token", number,
         "blocks that all leases and requests in flight of a token hold, if its entry in the "
         "tokens file does not say; a block counts as often as it is held (default 262144)"},
    Flag{"max-blocks-per-request", "/blocks/max_blocks_per_request", number,
         "keys or blocks of one request (default 65536)"},
    Flag{"staging-bytes", "/blocks/staging_bytes", number,
         "buffers for reads and writes of tiers that the CPU cannot access (default 67108864)"},
    Flag{"events-kept", "/events/kept", number,
         "events kept for clients that resume, at least 64 (default 65536)"},
    Flag{"events-zmq", "/events/zmq/endpoint", text,
         "endpoint to publish events on over ZeroMQ, e.g. tcp://127.0.0.1:5557 (default none)"},
    Flag{"events-zmq-replay", "/events/zmq/replay_endpoint", text,
         "endpoint for requests of missed events (default none)"},
    Flag{"shared", "/shared/url", text,
         "redis://HOST:PORT[,HOST:PORT...] (rediss:// with TLS) of the store that caches share "
         "with other servers (default none)"},
    Flag{"record", "/record/path", text,
         "file to write a trace of all requests to, for cairn-replay, with salted hashes as keys; "
         "an existing file becomes FILE.old (default none)"},
    Flag{"advertise", "/shared/advertise", text,
         "URL at which other servers reach this one, for shared tiers with holders (default the "
         "address listened on)"},
    Flag{"transfer-workers", "/transfers/workers", number,
         "concurrent transfers in memory, 1 to 64 (default 2)"},
    Flag{"transfer-strategy-load", "/transfers/strategy/load", text,
         "how copies to a device are done, and how their end is detected: auto, sync (the thread "
         "waits for the stream), async (an event), polling (the thread polls the event every "
         "transfers.polling_interval_us) or unified (tiers in unified memory) (default auto)"},
    Flag{"transfer-strategy-store", "/transfers/strategy/store", text,
         "the same for copies from a device (default auto)"},
    Flag{"transfer-strategy-device", "/transfers/strategy/device", text,
         "the same within a device and between devices (default auto)"},
    Flag{"device-kept-bytes", "/transfers/device_kept_bytes", number,
         "unused memory of each device that is kept for the next tier or transfer instead of being "
         "returned to the driver (default 0)"},
    Flag{"disk-threads", "/transfers/disk_threads", number,
         "threads for the checksums of disk tiers, 1 to 64 (default 2)"},
    Flag{"disk-engine", "/disk/engine", text,
         "auto, io_uring or threads; auto takes io_uring if the kernel allows it (default auto)"},
    Flag{"disk-admission", "/disk/admission", text,
         "which blocks leaving memory go to disk: always, or second_use (default always)"},
    Flag{"disk-write-bytes-per-s", "/disk/write_bytes_per_s", number,
         "limit for offloads to disk; 0: no limit (default 0)"},
    Flag{"disk-scrub-bytes-per-s", "/disk/scrub_bytes_per_s", number,
         "rate at which the disk tier is read and checked; 0: not at all (default 0)"},
    Flag{"disk-checkpoint-ms", "/disk/checkpoint_period_ms", number,
         "how often the index of a disk tier is made durable; 0: only at the end (default 30000)"},
};

po::options_description describe() {
  po::options_description options("Options", 100);
  options.add_options()(
      "config", po::value<std::string>()->value_name("FILE"),
      "JSON file with these settings and more (pressure, caches); flags and variables override it");
  for (const Flag& flag : kFlags) {
    auto* value = po::value<std::string>();
    if (flag.kind == yes) {
      value->zero_tokens()->implicit_value("true");
    } else {
      value->value_name(flag.kind == number ? "N" : "TEXT");
    }
    options.add_options()(flag.name, value, flag.help);
  }
  options.add_options()(
      "restore", po::value<std::vector<std::string>>()->composing()->value_name("CACHE=NAME"),
      "snapshot to restore before serving: CACHE=NAME of the data directory, CACHE=FILE or FILE "
      "(with a slash in its path); a missing cache is made from the snapshot; repeatable");
  options.add_options()("check-config",
                        "check whether a server could start with these settings, exit with 0 or 2; "
                        "does not change data");
  options.add_options()("hash-token",
                        "read a token from standard input, print its hash for --tokens and exit");
  options.add_options()("list-settings",
                        "print every setting and its allowed values as JSON and exit");
  options.add_options()("help", "print this and exit")("version", "print the version and exit");
  return options;
}

std::string help_text(const po::options_description& options) {
  std::ostringstream out;
  out << "cairn-server stores KV-cache blocks in tiers and serves them over HTTP.\n\n"
         "Usage: cairn-server [options]\n\n"
      << options
      << "\nEach option is also read from the environment: --max-leases from CAIRN_MAX_LEASES, "
         "--config from\nCAIRN_CONFIG. Flags override variables, variables override the file. A "
         "variable that\nbegins with CAIRN_ and is no setting is refused. The file can also "
         "have:\n\n";
  for (const SettingHelp& setting : file_settings()) {
    out << "  " << setting.field << ": " << setting.help << "\n";
  }
  out << "\nTIER is device, pinned or disk. --list-settings prints all settings and their "
         "allowed values.\n";
  return std::move(out).str();
}

// A setting from a flag or a variable. `origin` is its name: "--threads" or "CAIRN_THREADS".
struct Given {
  std::string text;
  std::string origin;
};
using GivenByFlag = std::map<std::string, Given, std::less<>>;

std::string variable_of(std::string_view flag) {
  std::string name = "CAIRN_" + std::string(flag);
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(c));
  return name;
}

// The field's name in the file: http.max_connections for "/http/max_connections".
std::string field_of(const Flag& flag) {
  std::string field = std::string(flag.field).substr(1);
  std::ranges::replace(field, '/', '.');
  return field;
}

std::string settings_text() {
  std::vector<SettingHelp> all;
  for (const Flag& flag : kFlags) {
    all.push_back({.field = field_of(flag),
                   .flag = flag.name,
                   .variable = variable_of(flag.name),
                   .help = flag.help});
  }
  all.push_back({.field = "restore",
                 .flag = "restore",
                 .variable = variable_of("restore"),
                 .help = "snapshots to restore before serving (default none)"});
  std::ranges::move(file_settings(), std::back_inserter(all));
  return list_settings(all);
}

std::set<std::string> setting_variables() {
  std::set<std::string> all = {variable_of("config"), variable_of("restore")};
  for (const Flag& flag : kFlags) all.insert(variable_of(flag.name));
  return all;
}

std::optional<std::string> value_in(std::span<const char* const> environment,
                                    const std::string& variable) {
  for (const std::string_view entry : environment) {
    if (entry.size() > variable.size() + 1 && entry.starts_with(variable) &&
        entry[variable.size()] == '=') {
      return std::string(entry.substr(variable.size() + 1));
    }
  }
  return std::nullopt;
}

GivenByFlag gather(const po::variables_map& flags, std::span<const char* const> environment) {
  GivenByFlag all;
  const auto add = [&](const std::string& flag) {
    if (flags.count(flag) > 0) {
      all[flag] = {flags[flag].as<std::string>(), "--" + flag};
    } else if (auto text = value_in(environment, variable_of(flag))) {
      all[flag] = {std::move(*text), variable_of(flag)};
    }
  };
  add("config");
  for (const Flag& flag : kFlags) add(flag.name);
  return all;
}

// --restore is the only flag that may be repeated. Its variable holds one value.
std::vector<std::string> gather_restores(const po::variables_map& flags,
                                         std::span<const char* const> environment) {
  if (flags.count("restore") > 0) return flags["restore"].as<std::vector<std::string>>();
  if (auto text = value_in(environment, variable_of("restore"))) return {std::move(*text)};
  return {};
}

Result<json> read_file(const Given& config) {
  const std::string where = config.origin + ": '" + config.text + "'";
  std::ifstream file(config.text, std::ios::binary);
  if (!file) return Error{ErrorCode::not_found, where + " cannot be read"};
  std::ostringstream text;
  text << file.rdbuf();
  auto document = parse_document(text.str());
  if (!document) {
    return Error{document.error().code, where + ": " + document.error().detail};
  }
  if (!document->is_object()) {
    return Error{ErrorCode::wrong_type, where + " holds no object"};
  }
  return document;
}

// Converts numbers and booleans to JSON. Other text stays text, which the field's reader then
// refuses.
json value_of(const Flag& flag, const std::string& text) {
  if (flag.kind == FlagKind::text) return text;
  if (flag.kind == paths || flag.kind == names) {
    json list = json::array();
    std::istringstream words(text);
    const char separator = flag.kind == paths ? ':' : ',';
    for (std::string word; std::getline(words, word, separator);) list.push_back(word);
    return list;
  }
  auto read = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (flag.kind == yes ? read.is_boolean() : read.is_number()) return read;
  return text;
}

// The source of the field that an error names: flag, variable or file.
std::string origin_of(const GivenByFlag& given, std::string_view detail) {
  for (const Flag& flag : kFlags) {
    const auto found = given.find(flag.name);
    if (found == given.end()) continue;
    if (detail.starts_with(field_of(flag) + " ")) return found->second.origin + ": ";
  }
  const auto config = given.find("config");
  if (config == given.end()) return "";
  return config->second.origin + ": '" + config->second.text + "': ";
}

// Returns false if a section on the way to `field` is not an object. That section then stays as in
// the file, and its reader refuses it.
bool lies_in_objects(const json& document, const json::json_pointer& field) {
  for (auto section = field.parent_pointer(); !section.empty();
       section = section.parent_pointer()) {
    if (document.contains(section) && !document[section].is_object()) return false;
  }
  return true;
}

Result<Settings> settings_of(const GivenByFlag& given, const std::vector<std::string>& restores) {
  json document = json::object();
  if (const auto config = given.find("config"); config != given.end()) {
    auto file = read_file(config->second);
    if (!file) return std::move(file).error();
    document = std::move(*file);
  }
  for (const Flag& flag : kFlags) {
    const auto found = given.find(flag.name);
    if (found == given.end()) continue;
    const json::json_pointer field(flag.field);
    if (lies_in_objects(document, field)) document[field] = value_of(flag, found->second.text);
  }
  if (!restores.empty()) document["restore"] = restores;
  auto settings = read_settings(document.dump());
  if (settings) return settings;
  return Error{settings.error().code,
               origin_of(given, settings.error().detail) + settings.error().detail};
}

}  // namespace

Result<std::variant<Settings, PrintAndExit, HashToken, CheckConfig>> read_command_line(
    const CommandLine& given) {
  using Answer = std::variant<Settings, PrintAndExit, HashToken, CheckConfig>;
  const po::options_description options = describe();
  po::variables_map flags;
  try {
    // No abbreviations: a new flag could change their meaning.
    const int style =
        po::command_line_style::default_style & ~po::command_line_style::allow_guessing;
    po::store(
        po::command_line_parser(static_cast<int>(given.arguments.size()), given.arguments.data())
            .options(options)
            .positional({})
            .style(style)
            .run(),
        flags);
  } catch (const po::error& wrong) {
    return Error{ErrorCode::malformed, wrong.what()};
  }
  if (flags.count("help") > 0) return Answer(PrintAndExit{help_text(options)});
  if (flags.count("list-settings") > 0) return Answer(PrintAndExit{settings_text()});
  if (flags.count("version") > 0) {
    return Answer(PrintAndExit{"cairn-server " + std::string(kVersion) + "\n"});
  }
  if (flags.count("hash-token") > 0) return Answer(HashToken{});
  CAIRN_TRY(check_variables(given.environment, setting_variables()));
  auto settings =
      settings_of(gather(flags, given.environment), gather_restores(flags, given.environment));
  if (!settings) return std::move(settings).error();
  if (flags.count("check-config") > 0) return Answer(CheckConfig{std::move(*settings)});
  return Answer(std::move(*settings));
}

}  // namespace cairn
