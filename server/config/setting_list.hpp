#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace cairn {

// How the text of a flag or variable becomes a JSON value.
enum class ValueKind : std::uint8_t {
  text,
  number,
  yes,       // a flag without a value
  paths,     // a list, separated by ':'
  names,     // a list, separated by ','
  repeated,  // a list: the flag may be given several times
};

// A setting: a field of the file of --config, and perhaps a flag and a variable that set it. A word
// in capitals in a field's path stands for several names: TIER for device, pinned and disk.
struct Setting {
  const char* field;                 // "http.max_connections"
  const char* help;                  // ends with "(default …)"
  const char* flag = nullptr;        // "max-connections"; null: the file only
  ValueKind kind = ValueKind::text;  // of the flag
};

// All settings, those with a flag first.
std::span<const Setting> all_settings();
// CAIRN_MAX_CONNECTIONS for the flag max-connections.
std::string variable_of(std::string_view flag);

// Returns true if `path` is `field`, or one of the fields that it stands for.
bool stands_for(std::string_view field, std::string_view path);

// The settings as a JSON list, each with the values that the file's reader takes.
std::string list_settings();

}  // namespace cairn
