#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// An object holds many values one after another, then its directory. Version 1, little-endian and
// packed:
//   values   their bytes, without gaps
//   directory
//     u64 XXH3 of all that follows; u32 magic "CRNO"; u32 version; u32 entries; u32 zero;
//     for each entry: u64 offset; u64 bytes; u64 time to live in ms since the object's last use, 0:
//     no limit; u16 bytes of the name; the name
//
// Its name tells when it was made, by which server, and how long its directory is, so a listing
// orders objects by age, and one request reads the directory.
namespace cairn {

inline constexpr std::uint32_t kObjectVersion = 1;
// Of one object. 16,384 values of 2 KiB fill 32 MiB; smaller blocks are rare.
inline constexpr std::size_t kMaxObjectValues = 16'384;
inline constexpr std::size_t kMaxValueName = 512;
inline constexpr std::size_t kMaxDirectoryBytes = 4u << 20;

struct ObjectEntry {
  std::string name;
  std::uint64_t offset = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t ttl_ms = 0;  // since the object's last use; 0: no limit

  friend bool operator==(const ObjectEntry&, const ObjectEntry&) = default;
};

// REQUIRES: the entries' values follow one another from offset 0; the limits above.
std::string write_directory(std::span<const ObjectEntry> entries);
// nullopt unless every byte is intact and the values fill the object up to its directory.
std::optional<std::vector<ObjectEntry>> read_directory(std::string_view directory);

struct ObjectName {
  std::int64_t created_unix_ms = 0;
  std::string writer = {};
  std::uint64_t number = 0;  // of the writer's objects; each start begins with a random number
  std::uint64_t directory_bytes = 0;

  // Sorts by age. "0001795817402123-host1-00000000deadbeef-0000a100".
  std::string text() const;
  static std::optional<ObjectName> read(std::string_view text);

  friend bool operator==(const ObjectName&, const ObjectName&) = default;
};
// The least name of an object of that time.
std::string first_name_of(std::int64_t unix_ms);

// --- uses
// When a server has last used which objects: one small object for each server, which replaces its
// last one. Version 1, little-endian and packed: u64 XXH3 of all that follows; u32 magic "CRNU";
// u32 version; for each object: u64 XXH3 of its name; i64 Unix ms.
inline constexpr std::string_view kUsesPrefix = "uses/";  // then the server's name
// 1 MiB. Objects that were used longer ago do not count.
inline constexpr std::size_t kMaxUsesOfServer = 65'536;

struct ObjectUse {
  std::uint64_t object = 0;  // object_hash() of its name
  std::int64_t last_use_unix_ms = 0;

  friend bool operator==(const ObjectUse&, const ObjectUse&) = default;
};
std::uint64_t object_hash(std::string_view name);

// REQUIRES: at most kMaxUsesOfServer.
std::string write_uses(const std::vector<ObjectUse>& uses);
// nullopt unless every byte is intact.
std::optional<std::vector<ObjectUse>> read_uses(std::string_view bytes);

}  // namespace cairn
