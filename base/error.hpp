#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cairn {

// The closed set of errors. The names are the `code` values of the HTTP contract: never rename or
// reuse one.
enum class ErrorCode : std::uint8_t {
  // the request is malformed or breaks the schema
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
  // not found
  unknown_cache,
  unknown_lease,
  unknown_pin,
  unknown_key,
  unknown_transfer,
  unknown_slot,
  unknown_snapshot,
  unknown_group,
  unknown_agent,
  not_found,
  method_not_allowed,
  // conflicts with the current state
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
  // too large, of the wrong kind, or impossible
  body_too_large,
  unsupported_media_type,
  range_not_satisfiable,
  impossible,
  impossible_shape,
  unknown_tier,
  unknown_kv_group,
  broken_snapshot,
  // not now, may be retried
  queue_full,
  too_many,
  lease_quota,
  unavailable,
  peer_lost,
  no_capacity,
  // server-side failures
  io_error,
  checksum_mismatch,
  device_error,
  cancelled,
  deadline_exceeded,
  not_implemented,
  internal,
};

// The enumerator's name, e.g. "stale_generation".
std::string_view to_string(ErrorCode code);

// An expected failure. `detail` is a sentence for a person, with the field, the value and the
// limit.
struct Error {
  ErrorCode code = ErrorCode::internal;
  std::string detail;
};

}  // namespace cairn
