#include "server/config/command_line.hpp"

#include <algorithm>
#include <boost/program_options.hpp>
#include <fstream>
#include <functional>
#include <map>
#include <ranges>
#include <set>
#include <sstream>

#include "base/nearest.hpp"
#include "base/version.hpp"
#include "server/codec/document.hpp"
#include "server/config/setting_list.hpp"
#include "server/config/variables.hpp"

namespace cairn {
namespace {

namespace po = boost::program_options;

// A flag is another way to set a field of the file, so both have the same rules and defaults.
// These take one value; --restore takes several.
auto flags_of_one_value() {
  return all_settings() | std::views::filter([](const Setting& setting) {
           return setting.flag != nullptr && setting.kind != ValueKind::repeated;
         });
}

po::options_description describe() {
  po::options_description options("Options", 100);
  options.add_options()(
      "config", po::value<std::string>()->value_name("FILE"),
      "JSON file with these settings and more (pressure, caches); flags and variables override it");
  for (const Setting& setting : flags_of_one_value()) {
    auto* value = po::value<std::string>();
    if (setting.kind == ValueKind::yes) {
      value->zero_tokens()->implicit_value("true");
    } else {
      value->value_name(setting.kind == ValueKind::number ? "N" : "TEXT");
    }
    options.add_options()(setting.flag, value, setting.help);
  }
  const auto restore = std::ranges::find(all_settings(), ValueKind::repeated, &Setting::kind);
  options.add_options()(
      restore->flag, po::value<std::vector<std::string>>()->composing()->value_name("CACHE=NAME"),
      restore->help);
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
      << "\nSizes may be written 16GiB or 500MB, durations 10s, 5m or 1.5h.\nEach option is also "
         "read from the environment: --max-leases from CAIRN_MAX_LEASES, "
         "--config from\nCAIRN_CONFIG. Flags override variables, variables override the file. A "
         "variable that\nbegins with CAIRN_ and is no setting is refused. The file can also "
         "have:\n\n";
  for (const Setting& setting : all_settings()) {
    if (setting.flag == nullptr) out << "  " << setting.field << ": " << setting.help << "\n";
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

std::set<std::string> setting_variables() {
  std::set<std::string> all = {variable_of("config")};
  for (const Setting& setting : all_settings()) {
    if (setting.flag != nullptr) all.insert(variable_of(setting.flag));
  }
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
  for (const Setting& setting : flags_of_one_value()) add(setting.flag);
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
// refuses or reads as a number with a unit.
json value_of(ValueKind kind, const std::string& text) {
  if (kind == ValueKind::text) return text;
  if (kind == ValueKind::paths || kind == ValueKind::names) {
    json list = json::array();
    std::istringstream words(text);
    const char separator = kind == ValueKind::paths ? ':' : ',';
    for (std::string word; std::getline(words, word, separator);) list.push_back(word);
    return list;
  }
  auto read = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (kind == ValueKind::yes ? read.is_boolean() : read.is_number()) return read;
  return text;
}

// The source of the field that an error names: flag, variable or file.
std::string origin_of(const GivenByFlag& given, std::string_view detail) {
  for (const Setting& setting : flags_of_one_value()) {
    const auto found = given.find(setting.flag);
    if (found == given.end()) continue;
    if (detail.starts_with(std::string(setting.field) + " ")) return found->second.origin + ": ";
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
  for (const Setting& setting : flags_of_one_value()) {
    const auto found = given.find(setting.flag);
    if (found == given.end()) continue;
    std::string path = "/" + std::string(setting.field);
    std::ranges::replace(path, '.', '/');
    const json::json_pointer field(path);
    if (lies_in_objects(document, field)) {
      document[field] = value_of(setting.kind, found->second.text);
    }
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
  } catch (const po::unknown_option& wrong) {
    return Error{ErrorCode::malformed,
                 wrong.what() + did_you_mean_option(wrong.get_option_name(), options)};
  } catch (const po::error& wrong) {
    return Error{ErrorCode::malformed, wrong.what()};
  }
  if (flags.count("help") > 0) return Answer(PrintAndExit{help_text(options)});
  if (flags.count("list-settings") > 0) return Answer(PrintAndExit{list_settings()});
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
