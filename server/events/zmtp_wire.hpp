#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

// The wire format of ZMTP 3.0 with mechanism NULL (ZeroMQ RFC 23 and 37).
namespace cairn::zmtp {

inline constexpr std::size_t kGreetingBytes = 64;
// Per frame from a client: a handshake with its metadata, a subscription, a number.
inline constexpr std::size_t kMaxFrameBytes = 1024;

std::string greeting();
// True for a peer that speaks version 3 or later, without security.
bool is_greeting(std::string_view bytes);

struct Frame {
  bool is_command = false;
  bool has_more = false;
  std::string_view body;
  std::size_t taken_bytes = 0;  // including the frame's head
};
enum class Parsed : std::uint8_t { whole, part, too_long };
// Reads the first frame. Returns too_long as soon as that is known.
Parsed next_frame(std::string_view bytes, Frame& out);

std::string frame_head(std::size_t body_bytes, bool has_more);
std::string frame(std::string_view body, bool has_more);
std::string number_frame(std::uint64_t number);  // 8 bytes, big-endian; more frames follow
// nullopt if malformed.
std::optional<std::uint64_t> number_of(std::string_view body);

// A command's name and data; nullopt if malformed.
std::optional<std::pair<std::string_view, std::string_view>> command_of(std::string_view body);
std::string ready(std::string_view socket_type);
// From READY's metadata; empty if missing or malformed.
std::string_view socket_type_of(std::string_view metadata);
// The answer to a PING; nullopt if malformed.
std::optional<std::string> pong(std::string_view ping);

}  // namespace cairn::zmtp
