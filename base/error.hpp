#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cairn {

// What went wrong, as a closed set. The names are the stable `code` words of the HTTP contract: a
// word is never renamed or reused.
enum class ErrorCode : std::uint8_t {
  // the request cannot be read or breaks the schema
  malformed,
  unknown_field,
  missing_field,
  wrong_type,
  out_of_range,
  wrong_length,
  // credentials
  unauthorized,
  forbidden,
  unknown_host,
  cross_site,
  // what is named does not exist
  unknown_cache,
  unknown_lease,
  unknown_key,
  unknown_transfer,
  unknown_slot,
  unknown_snapshot,
  unknown_group,
  unknown_agent,
  not_found,
  method_not_allowed,
  // the state does not allow it
  stale_generation,
  state_conflict,
  foreign_lease,
  leased,
  cache_exists,
  exists,
  group_exists,
  agent_exists,
  rank_taken,
  lease_expired,
  // too much, of the wrong kind, or impossible
  body_too_large,
  unsupported_media_type,
  range_not_satisfiable,
  impossible,
  impossible_shape,
  unknown_tier,
  broken_snapshot,
  // not now
  queue_full,
  too_many,
  lease_quota,
  unavailable,
  peer_lost,
  no_capacity,
  // the machine's fault
  io_error,
  checksum_mismatch,
  device_error,
  cancelled,
  deadline_exceeded,
  not_implemented,
  internal,
};

// The enumerator's own name, e.g. "stale_generation".
std::string_view to_string(ErrorCode code);

// An expected failure. `detail` is a sentence for a person: it names the field, the value and the
// bound.
struct Error {
  ErrorCode code = ErrorCode::internal;
  std::string detail;
};

}  // namespace cairn
