#include "base/error.hpp"

#include "base/assert.hpp"
#include "base/result.hpp"

namespace cairn {

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::malformed:
      return "malformed";
    case ErrorCode::unknown_field:
      return "unknown_field";
    case ErrorCode::missing_field:
      return "missing_field";
    case ErrorCode::wrong_type:
      return "wrong_type";
    case ErrorCode::out_of_range:
      return "out_of_range";
    case ErrorCode::wrong_length:
      return "wrong_length";
    case ErrorCode::unauthorized:
      return "unauthorized";
    case ErrorCode::forbidden:
      return "forbidden";
    case ErrorCode::unknown_host:
      return "unknown_host";
    case ErrorCode::cross_site:
      return "cross_site";
    case ErrorCode::unknown_cache:
      return "unknown_cache";
    case ErrorCode::unknown_lease:
      return "unknown_lease";
    case ErrorCode::unknown_pin:
      return "unknown_pin";
    case ErrorCode::unknown_key:
      return "unknown_key";
    case ErrorCode::unknown_transfer:
      return "unknown_transfer";
    case ErrorCode::unknown_slot:
      return "unknown_slot";
    case ErrorCode::unknown_snapshot:
      return "unknown_snapshot";
    case ErrorCode::unknown_group:
      return "unknown_group";
    case ErrorCode::unknown_agent:
      return "unknown_agent";
    case ErrorCode::not_found:
      return "not_found";
    case ErrorCode::method_not_allowed:
      return "method_not_allowed";
    case ErrorCode::stale_generation:
      return "stale_generation";
    case ErrorCode::state_conflict:
      return "state_conflict";
    case ErrorCode::foreign_lease:
      return "foreign_lease";
    case ErrorCode::leased:
      return "leased";
    case ErrorCode::cache_exists:
      return "cache_exists";
    case ErrorCode::exists:
      return "exists";
    case ErrorCode::group_exists:
      return "group_exists";
    case ErrorCode::agent_exists:
      return "agent_exists";
    case ErrorCode::rank_taken:
      return "rank_taken";
    case ErrorCode::lease_expired:
      return "lease_expired";
    case ErrorCode::body_too_large:
      return "body_too_large";
    case ErrorCode::unsupported_media_type:
      return "unsupported_media_type";
    case ErrorCode::range_not_satisfiable:
      return "range_not_satisfiable";
    case ErrorCode::impossible:
      return "impossible";
    case ErrorCode::impossible_shape:
      return "impossible_shape";
    case ErrorCode::unknown_tier:
      return "unknown_tier";
    case ErrorCode::unknown_kv_group:
      return "unknown_kv_group";
    case ErrorCode::broken_snapshot:
      return "broken_snapshot";
    case ErrorCode::queue_full:
      return "queue_full";
    case ErrorCode::too_many:
      return "too_many";
    case ErrorCode::lease_quota:
      return "lease_quota";
    case ErrorCode::unavailable:
      return "unavailable";
    case ErrorCode::peer_lost:
      return "peer_lost";
    case ErrorCode::no_capacity:
      return "no_capacity";
    case ErrorCode::io_error:
      return "io_error";
    case ErrorCode::checksum_mismatch:
      return "checksum_mismatch";
    case ErrorCode::device_error:
      return "device_error";
    case ErrorCode::cancelled:
      return "cancelled";
    case ErrorCode::deadline_exceeded:
      return "deadline_exceeded";
    case ErrorCode::not_implemented:
      return "not_implemented";
    case ErrorCode::internal:
      return "internal";
  }
  invariant_broken("ErrorCode", "a value outside the enumeration");
}

void throw_exception_from_error(const Error& error, const boost::source_location& where) {
  static_cast<void>(where);
  invariant_broken("Result::value", error.detail);
}

}  // namespace cairn
