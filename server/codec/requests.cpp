#include "server/codec/requests.hpp"

#include "server/codec/ids.hpp"

namespace cairn {

Result<> check_match_sources(bool has_keys, const MatchBody& body) {
  if (has_keys && body.has_tokens) {
    return Error{ErrorCode::malformed, "keys and tokens are both given; a match takes one of them"};
  }
  if (!has_keys && !body.has_tokens) {
    return Error{ErrorCode::missing_field, "keys (or tokens) is missing"};
  }
  if (body.salt && !body.has_tokens) {
    return Error{ErrorCode::malformed, "salt is given without tokens; it is part of their keys"};
  }
  if (body.onboard && body.lease_ms == 0U) {
    return Error{
        ErrorCode::out_of_range,
        "lease_ms is 0; with onboard it takes at least 1, as what is brought up is leased"};
  }
  return {};
}

Result<> check_release(const ReleaseBody& body, bool has_blocks) {
  if (!has_blocks || !body.blocks.empty()) return {};
  return Error{ErrorCode::out_of_range,
               "blocks has 0 elements; it takes at least 1 (leave it out to give up all)"};
}

Error too_many(std::string_view list, std::size_t most) {
  return {ErrorCode::out_of_range, std::string(list) + " has more elements than the " +
                                       std::to_string(most) + " that it takes"};
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

}  // namespace cairn
