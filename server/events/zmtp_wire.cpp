#include "server/events/zmtp_wire.hpp"

#include <algorithm>

namespace cairn::zmtp {
namespace {

constexpr std::string_view kSignature{"\xff\0\0\0\0\0\0\0\0\x7f", 10};
constexpr std::size_t kMechanismAt = 12;
constexpr std::size_t kMechanismBytes = 20;
constexpr char kMore = 1;
constexpr char kLong = 2;
constexpr char kCommand = 4;
constexpr std::size_t kMostShort = 255;
constexpr std::size_t kMaxPingContext = 16;  // the protocol's limit

std::string mechanism() {
  std::string name = "NULL";
  name.resize(kMechanismBytes, '\0');
  return name;
}

std::string big_endian(std::uint64_t number, std::size_t size) {
  std::string bytes(size, '\0');
  for (std::size_t i = size; i-- > 0; number >>= 8) bytes[i] = static_cast<char>(number & 0xff);
  return bytes;
}

std::uint64_t from_big_endian(std::string_view bytes) {
  std::uint64_t number = 0;
  for (const char byte : bytes) number = number << 8 | static_cast<unsigned char>(byte);
  return number;
}

std::string command(std::string_view name, std::string_view data) {
  std::string bytes{kCommand, static_cast<char>(1 + name.size() + data.size()),
                    static_cast<char>(name.size())};
  return bytes.append(name).append(data);
}

}  // namespace

std::string greeting() {
  std::string bytes(kSignature);
  bytes += std::string_view("\3\0", 2);
  bytes += mechanism();
  bytes.resize(kGreetingBytes, '\0');  // as-server is 0, and the rest is filler
  return bytes;
}

bool is_greeting(std::string_view bytes) {
  // The signature has eight bytes of padding, where an older version has a length.
  return bytes.size() >= kGreetingBytes && bytes.front() == kSignature.front() &&
         bytes[9] == kSignature[9] && static_cast<unsigned char>(bytes[10]) >= 3 &&
         bytes.substr(kMechanismAt, kMechanismBytes) == mechanism();
}

Parsed next_frame(std::string_view bytes, Frame& out) {
  if (bytes.empty()) return Parsed::part;
  const char flags = bytes.front();
  const std::size_t length_bytes = (flags & kLong) != 0 ? 8 : 1;
  if (bytes.size() < 1 + length_bytes) return Parsed::part;
  const std::uint64_t length = from_big_endian(bytes.substr(1, length_bytes));
  if (length > kMaxFrameBytes) return Parsed::too_long;
  const std::size_t taken = 1 + length_bytes + static_cast<std::size_t>(length);
  if (bytes.size() < taken) return Parsed::part;
  out = {.is_command = (flags & kCommand) != 0,
         .has_more = (flags & kMore) != 0,
         .body = bytes.substr(1 + length_bytes, static_cast<std::size_t>(length)),
         .taken_bytes = taken};
  return Parsed::whole;
}

std::string frame_head(std::size_t body_bytes, bool has_more) {
  const char more = has_more ? kMore : 0;
  if (body_bytes <= kMostShort) return {more, static_cast<char>(body_bytes)};
  return std::string(1, static_cast<char>(more | kLong)) + big_endian(body_bytes, 8);
}

std::string frame(std::string_view body, bool has_more) {
  return frame_head(body.size(), has_more).append(body);
}

std::string number_frame(std::uint64_t number) { return frame(big_endian(number, 8), true); }

std::optional<std::uint64_t> number_of(std::string_view body) {
  if (body.size() != 8) return std::nullopt;
  return from_big_endian(body);
}

std::optional<std::pair<std::string_view, std::string_view>> command_of(std::string_view body) {
  if (body.empty()) return std::nullopt;
  const std::size_t size = static_cast<unsigned char>(body.front());
  if (size == 0 || body.size() < 1 + size) return std::nullopt;
  return std::pair(body.substr(1, size), body.substr(1 + size));
}

std::string ready(std::string_view socket_type) {
  constexpr std::string_view kName = "Socket-Type";
  std::string data(1, static_cast<char>(kName.size()));
  data.append(kName).append(big_endian(socket_type.size(), 4)).append(socket_type);
  return command("READY", data);
}

std::string_view socket_type_of(std::string_view metadata) {
  constexpr std::string_view kName = "socket-type";
  std::string_view type;
  while (!metadata.empty()) {
    const std::size_t name_bytes = static_cast<unsigned char>(metadata.front());
    if (metadata.size() < 1 + name_bytes + 4) return {};
    const std::string_view name = metadata.substr(1, name_bytes);
    const std::uint64_t value_bytes = from_big_endian(metadata.substr(1 + name_bytes, 4));
    metadata.remove_prefix(1 + name_bytes + 4);
    if (metadata.size() < value_bytes) return {};
    const bool is_type = std::ranges::equal(
        name, kName, [](char given, char known) { return (given | 0x20) == (known | 0x20); });
    if (is_type) type = metadata.substr(0, static_cast<std::size_t>(value_bytes));
    metadata.remove_prefix(static_cast<std::size_t>(value_bytes));
  }
  return type;
}

std::optional<std::string> pong(std::string_view ping) {
  constexpr std::size_t kTtlBytes = 2;
  if (ping.size() < kTtlBytes || ping.size() > kTtlBytes + kMaxPingContext) return std::nullopt;
  return command("PONG", ping.substr(kTtlBytes));
}

}  // namespace cairn::zmtp
