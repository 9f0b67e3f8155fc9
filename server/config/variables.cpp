#include "server/config/variables.hpp"

#include <algorithm>
#include <array>
#include <regex>
#include <string_view>
#include <vector>

#include "base/nearest.hpp"

namespace cairn {
namespace {

constexpr std::string_view kPrefix = "CAIRN_";

// Variables of the clients, of docker/, of the scripts and tests. A server started from the same
// shell ignores them.
constexpr std::array<std::string_view, 16> kOfOthers = {
    "CAIRN_BARE_DEBIAN",   "CAIRN_CA",        "CAIRN_ENGINES",       "CAIRN_ENGINES_LONG",
    "CAIRN_ENGINE_PYTHON", "CAIRN_EXCHANGES", "CAIRN_FLEET_ENTERED", "CAIRN_OWN_MOUNTS",
    "CAIRN_PORT",          "CAIRN_PYTHON",    "CAIRN_REQUIRE_GPU",   "CAIRN_SERVER",
    "CAIRN_SERVER_BINARY", "CAIRN_TOKEN",     "CAIRN_UNSHARED",      "CAIRN_VERSION"};
// Prefixes for the libraries that tests load into a server.
constexpr std::array<std::string_view, 3> kTestPrefixes = {"CAIRN_FAKE_", "CAIRN_FAULTS_",
                                                           "CAIRN_TEST_"};

bool is_service_link(const std::string& name, std::string_view value) {
  static const std::regex kAlways(
      "CAIRN(_[A-Z0-9_]+)?_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|"
      "PORT_[0-9]+_(TCP|UDP|SCTP)(_PROTO|_PORT|_ADDR)?)");
  if (std::regex_match(name, kAlways)) return true;
  return name.ends_with("_PORT") && value.find("://") != std::string_view::npos;
}

bool is_of_others(const std::string& name, std::string_view value) {
  const auto begins = [&name](std::string_view prefix) { return name.starts_with(prefix); };
  return std::ranges::find(kOfOthers, name) != kOfOthers.end() ||
         std::ranges::any_of(kTestPrefixes, begins) || is_service_link(name, value);
}

}  // namespace

Result<> check_variables(std::span<const char* const> environment,
                         const std::set<std::string>& settings) {
  for (const std::string_view entry : environment) {
    const std::size_t equals = entry.find('=');
    if (!entry.starts_with(kPrefix) || equals == std::string_view::npos) continue;
    const std::string name(entry.substr(0, equals));
    const std::string_view value = entry.substr(equals + 1);
    if (value.empty() || settings.contains(name) || is_of_others(name, value)) continue;
    const std::vector<std::string_view> names(settings.begin(), settings.end());
    const std::string near = did_you_mean(name, names);
    return Error{ErrorCode::unknown_field,
                 name + ": there is no such setting" +
                     (near.empty() ? "; --help lists all settings" : near)};
  }
  return {};
}

}  // namespace cairn
