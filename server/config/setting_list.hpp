#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {

// A setting as --help and --list-settings show it. A word in capitals in a field's path stands for
// several names: TIER for device, pinned and disk.
struct SettingHelp {
  std::string field;          // "http.max_connections"
  std::string flag = {};      // "max-connections"; empty: the file of --config only
  std::string variable = {};  // "CAIRN_MAX_CONNECTIONS"; empty: none
  std::string help = {};      // ends with "(default …)"
};

// The settings that only the file of --config has.
std::vector<SettingHelp> file_settings();

// Returns true if `path` is `field`, or one of the fields that it stands for.
bool stands_for(std::string_view field, std::string_view path);

// The settings as a JSON list, each with the values that the file's reader takes. REQUIRES: the
// reader knows every field.
std::string list_settings(std::span<const SettingHelp> settings);

}  // namespace cairn
