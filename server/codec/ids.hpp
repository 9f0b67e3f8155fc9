#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "blockmgr/disk/pins_file.hpp"
#include "blockmgr/index/types.hpp"

namespace cairn {

// Text forms of ids: leases as 32 hex digits (the cache's number, then the secret), transfers as
// "t-" and hex digits, keys as hex.
inline constexpr std::size_t kLeaseBytes = 16;
std::array<std::byte, kLeaseBytes> lease_bytes(const LeaseId& lease);
void append_lease(std::string& out, const LeaseId& lease);
std::string lease_text(const LeaseId& lease);
std::optional<LeaseId> lease_from(std::string_view text);
// Error: malformed, naming `field`, if the text is not a lease.
Result<> read_lease(std::string_view text, LeaseId& out, std::string_view field = "lease");

std::string pin_text(const PinId& pin);  // as a lease: 32 hex digits
std::optional<PinId> pin_from(std::string_view text);

std::string transfer_text(TransferId id);
std::optional<TransferId> transfer_from(std::string_view text);

std::string key_text(KeyView key);
// Error: malformed, naming `field` and the reason, unless the text is 2 to 128 hex digits.
Result<BlockKey> key_from(std::string_view text, std::string_view field);

}  // namespace cairn
