#include "server/codec/ids.hpp"

#include <algorithm>
#include <charconv>

#include "base/hex.hpp"

namespace cairn {
namespace {

constexpr std::string_view kTransferPrefix = "t-";
constexpr std::size_t kMaxQuotedKey = 64;

}  // namespace

std::array<std::byte, kLeaseBytes> lease_bytes(const LeaseId& lease) {
  std::array<std::byte, kLeaseBytes> bytes{};
  for (std::size_t i = 0; i < 4; ++i) {
    bytes[i] = static_cast<std::byte>(lease.cache >> (24 - 8 * i));
  }
  std::copy(lease.secret.begin(), lease.secret.end(), bytes.begin() + 4);
  return bytes;
}

void append_lease(std::string& out, const LeaseId& lease) { append_hex(out, lease_bytes(lease)); }

std::string lease_text(const LeaseId& lease) { return to_hex(lease_bytes(lease)); }

std::optional<LeaseId> lease_from(std::string_view text) {
  std::array<std::byte, kLeaseBytes> bytes{};
  if (!from_hex(text, bytes)) return std::nullopt;
  LeaseId lease;
  for (std::size_t i = 0; i < 4; ++i) {
    lease.cache = (lease.cache << 8) | std::to_integer<std::uint32_t>(bytes[i]);
  }
  std::copy(bytes.begin() + 4, bytes.end(), lease.secret.begin());
  return lease;
}

Result<> read_lease(std::string_view text, LeaseId& out, std::string_view field) {
  const auto lease = lease_from(text);
  if (!lease) {
    return Error{ErrorCode::malformed, std::string(field) + " is '" +
                                           std::string(text.substr(0, 64)) +
                                           "'; a lease is written as 32 hex digits"};
  }
  out = *lease;
  return {};
}

std::string pin_text(const PinId& pin) { return to_hex(pin); }

std::optional<PinId> pin_from(std::string_view text) {
  PinId pin{};
  if (!from_hex(text, pin)) return std::nullopt;
  return pin;
}

std::string transfer_text(TransferId id) {
  std::array<char, 16> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), id.value, 16).ptr;
  return std::string(kTransferPrefix).append(digits.data(), end);
}

std::optional<TransferId> transfer_from(std::string_view text) {
  if (!text.starts_with(kTransferPrefix)) return std::nullopt;
  text.remove_prefix(kTransferPrefix.size());
  TransferId id;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id.value, 16);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return id;
}

std::string key_text(KeyView key) { return to_hex(key.bytes()); }

Result<BlockKey> key_from(std::string_view text, std::string_view field) {
  const auto refuse = [&](const char* rule) {
    std::string detail(field);
    detail.append(" is '").append(text.substr(0, kMaxQuotedKey));
    detail.append(text.size() > kMaxQuotedKey ? "…'; " : "'; ").append(rule);
    return Error{ErrorCode::malformed, std::move(detail)};
  };
  if (text.empty() || text.size() > 2 * kMaxKeyBytes) {
    return refuse("a key is 1 to 64 bytes, written as 2 to 128 hex digits");
  }
  std::array<std::byte, kMaxKeyBytes> bytes{};
  const std::span<std::byte> key(bytes.data(), text.size() / 2);
  if (!from_hex(text, key)) return refuse("a key is written in hex, two digits per byte");
  return BlockKey(key);
}

}  // namespace cairn
