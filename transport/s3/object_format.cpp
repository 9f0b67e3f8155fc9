#include "transport/s3/object_format.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <utility>

#include "base/assert.hpp"
#include "base/hash.hpp"

namespace cairn {
namespace {

constexpr std::uint32_t kMagic = 0x4F4E5243;  // "CRNO"
constexpr int kTimeDigits = 16;               // of decimal milliseconds: until the year 318857
constexpr int kNumberDigits = 16;             // hex
constexpr int kLengthDigits = 8;              // hex
constexpr std::size_t kMaxWriter = 16;

struct Head {
  std::uint64_t checksum;
  std::uint32_t magic;
  std::uint32_t version;
  std::uint32_t entries;
  std::uint32_t zero;
};
static_assert(sizeof(Head) == 24);

constexpr std::uint32_t kUsesMagic = 0x554E5243;  // "CRNU"
constexpr std::uint32_t kUsesVersion = 1;

struct UsesHead {
  std::uint64_t checksum;
  std::uint32_t magic;
  std::uint32_t version;
};
static_assert(sizeof(UsesHead) == 16 && sizeof(ObjectUse) == 16);

template <class T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Takes a value from the front of the text. Returns false if the text is too short.
template <class T>
bool take(std::string_view& text, T& value) {
  if (text.size() < sizeof(value)) return false;
  std::memcpy(&value, text.data(), sizeof(value));
  text.remove_prefix(sizeof(value));
  return true;
}

std::uint64_t checksum_of_rest(std::string_view bytes) {
  return hash_bytes(std::as_bytes(std::span(bytes.substr(sizeof(std::uint64_t)))), 0);
}

// Sets the checksum, with which the bytes begin.
std::string sealed(std::string bytes) {
  const std::uint64_t checksum = checksum_of_rest(bytes);
  std::memcpy(bytes.data(), &checksum, sizeof(checksum));
  return bytes;
}

std::string digits(std::uint64_t value, int base, int width) {
  std::array<char, 24> room{};
  const auto [end, error] = std::to_chars(room.data(), room.data() + room.size(), value, base);
  const std::string_view text(room.data(), static_cast<std::size_t>(end - room.data()));
  const auto wanted = static_cast<std::size_t>(width);
  return std::string(wanted - std::min(wanted, text.size()), '0').append(text);
}

// Takes the digits and what follows them from the front.
template <class T>
bool take_digits(std::string_view& text, int base, int width, T& value) {
  const auto size = static_cast<std::size_t>(width);
  if (text.size() < size) return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + size, value, base);
  if (error != std::errc() || end != text.data() + size) return false;
  text.remove_prefix(size);
  return true;
}

bool take_dash(std::string_view& text) {
  if (!text.starts_with('-')) return false;
  text.remove_prefix(1);
  return true;
}

}  // namespace

std::string write_directory(std::span<const ObjectEntry> entries) {
  CAIRN_ASSERT(!entries.empty() && entries.size() <= kMaxObjectValues, "an object's values");
  std::string out;
  const Head head{.checksum = 0,
                  .magic = kMagic,
                  .version = kObjectVersion,
                  .entries = static_cast<std::uint32_t>(entries.size()),
                  .zero = 0};
  append(out, head);
  for (const ObjectEntry& entry : entries) {
    CAIRN_ASSERT(entry.name.size() <= kMaxValueName, "the name of a value is too long");
    append(out, entry.offset);
    append(out, entry.size_bytes);
    append(out, entry.ttl_ms);
    append(out, static_cast<std::uint16_t>(entry.name.size()));
    out += entry.name;
  }
  return sealed(std::move(out));
}

std::optional<std::vector<ObjectEntry>> read_directory(std::string_view directory) {
  std::string_view rest = directory;
  Head head{};
  if (!take(rest, head) || head.magic != kMagic || head.version != kObjectVersion ||
      head.zero != 0 || head.entries == 0 || head.entries > kMaxObjectValues ||
      head.checksum != checksum_of_rest(directory)) {
    return std::nullopt;
  }
  std::vector<ObjectEntry> entries(head.entries);
  std::uint64_t end = 0;
  for (ObjectEntry& entry : entries) {
    std::uint16_t name_bytes = 0;
    if (!take(rest, entry.offset) || !take(rest, entry.size_bytes) || !take(rest, entry.ttl_ms) ||
        !take(rest, name_bytes) || name_bytes > kMaxValueName || name_bytes > rest.size() ||
        entry.offset != end || __builtin_add_overflow(end, entry.size_bytes, &end)) {
      return std::nullopt;
    }
    entry.name = rest.substr(0, name_bytes);
    rest.remove_prefix(name_bytes);
  }
  if (!rest.empty()) return std::nullopt;
  return entries;
}

std::string ObjectName::text() const {
  return digits(static_cast<std::uint64_t>(created_unix_ms), 10, kTimeDigits) + "-" + writer + "-" +
         digits(number, 16, kNumberDigits) + "-" + digits(directory_bytes, 16, kLengthDigits);
}

std::optional<ObjectName> ObjectName::read(std::string_view text) {
  ObjectName name;
  if (!take_digits(text, 10, kTimeDigits, name.created_unix_ms) || name.created_unix_ms < 0 ||
      !take_dash(text)) {
    return std::nullopt;
  }
  const std::size_t dash = text.find('-');
  if (dash == 0 || dash == std::string_view::npos || dash > kMaxWriter) return std::nullopt;
  name.writer = text.substr(0, dash);
  text.remove_prefix(dash);
  if (!take_dash(text) || !take_digits(text, 16, kNumberDigits, name.number) || !take_dash(text) ||
      !take_digits(text, 16, kLengthDigits, name.directory_bytes) || !text.empty() ||
      name.directory_bytes == 0 || name.directory_bytes > kMaxDirectoryBytes) {
    return std::nullopt;
  }
  return name;
}

std::string first_name_of(std::int64_t unix_ms) {
  return digits(static_cast<std::uint64_t>(std::max<std::int64_t>(unix_ms, 0)), 10, kTimeDigits);
}

std::uint64_t object_hash(std::string_view name) {
  return hash_bytes(std::as_bytes(std::span(name)), 0);
}

std::string write_uses(const std::vector<ObjectUse>& uses) {
  CAIRN_ASSERT(uses.size() <= kMaxUsesOfServer, "too many uses for one object");
  std::string out;
  append(out, UsesHead{.checksum = 0, .magic = kUsesMagic, .version = kUsesVersion});
  for (const ObjectUse& use : uses) append(out, use);
  return sealed(std::move(out));
}

std::optional<std::vector<ObjectUse>> read_uses(std::string_view bytes) {
  std::string_view rest = bytes;
  UsesHead head{};
  if (!take(rest, head) || rest.size() % sizeof(ObjectUse) != 0 ||
      rest.size() / sizeof(ObjectUse) > kMaxUsesOfServer || head.magic != kUsesMagic ||
      head.version != kUsesVersion || head.checksum != checksum_of_rest(bytes)) {
    return std::nullopt;
  }
  std::vector<ObjectUse> uses(rest.size() / sizeof(ObjectUse));
  for (ObjectUse& use : uses) take(rest, use);
  return uses;
}

}  // namespace cairn
