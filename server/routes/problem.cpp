#include "server/routes/problem.hpp"

#include <nlohmann/json.hpp>

#include "base/assert.hpp"

namespace cairn {
namespace {

// Queues drain within milliseconds, and a restart takes seconds. One second is the shortest
// Retry-After, and enough for a queue.
constexpr std::string_view kRetryAfter = "Retry-After: 1\r\n";

// Basic is for browsers, so that they ask for a password.
constexpr std::string_view kChallenge =
    "WWW-Authenticate: Bearer realm=\"cairn\"\r\nWWW-Authenticate: Basic realm=\"cairn\"\r\n";

// The code as words: "stale_generation" becomes "Stale generation".
std::string title_of(ErrorCode code) {
  std::string title(to_string(code));
  for (char& c : title) {
    if (c == '_') c = ' ';
  }
  title.front() = static_cast<char>(title.front() - 'a' + 'A');
  return title;
}

}  // namespace

unsigned http_status(ErrorCode code) {
  switch (code) {
    case ErrorCode::malformed:
    case ErrorCode::unknown_field:
    case ErrorCode::missing_field:
    case ErrorCode::wrong_type:
    case ErrorCode::out_of_range:
    case ErrorCode::wrong_length:
      return 400;
    case ErrorCode::unauthorized:
      return 401;
    case ErrorCode::forbidden:
    case ErrorCode::cross_site:
      return 403;
    case ErrorCode::unknown_cache:
    case ErrorCode::unknown_lease:
    case ErrorCode::unknown_pin:
    case ErrorCode::unknown_key:
    case ErrorCode::unknown_transfer:
    case ErrorCode::unknown_slot:
    case ErrorCode::unknown_snapshot:
    case ErrorCode::unknown_group:
    case ErrorCode::unknown_agent:
    case ErrorCode::not_found:
      return 404;
    case ErrorCode::method_not_allowed:
      return 405;
    case ErrorCode::stale_generation:
    case ErrorCode::state_conflict:
    case ErrorCode::foreign_lease:
    case ErrorCode::leased:
    case ErrorCode::cache_exists:
    case ErrorCode::exists:
    case ErrorCode::group_exists:
    case ErrorCode::agent_exists:
    case ErrorCode::rank_taken:
      return 409;
    case ErrorCode::lease_expired:
      return 410;
    case ErrorCode::body_too_large:
      return 413;
    case ErrorCode::unsupported_media_type:
      return 415;
    case ErrorCode::range_not_satisfiable:
      return 416;
    case ErrorCode::unknown_host:
      return 421;
    case ErrorCode::impossible:
    case ErrorCode::impossible_shape:
    case ErrorCode::unknown_tier:
    case ErrorCode::unknown_kv_group:
    case ErrorCode::broken_snapshot:
      return 422;
    case ErrorCode::queue_full:
    case ErrorCode::too_many:
    case ErrorCode::lease_quota:
      return 429;
    case ErrorCode::unavailable:
    case ErrorCode::peer_lost:
    case ErrorCode::cancelled:
    case ErrorCode::deadline_exceeded:
      return 503;
    case ErrorCode::no_capacity:
      return 507;
    case ErrorCode::not_implemented:
      return 501;
    case ErrorCode::io_error:
    case ErrorCode::checksum_mismatch:
    case ErrorCode::device_error:
    case ErrorCode::internal:
      return 500;
  }
  invariant_broken("code is an enumerator", "an error would get a wrong status");
}

std::string problem_body(const Error& error, unsigned status) {
  const std::string code(to_string(error.code));
  const nlohmann::ordered_json body = {{"type", "urn:cairn:error:" + code},
                                       {"title", title_of(error.code)},
                                       {"status", status},
                                       {"detail", error.detail},
                                       {"code", code}};
  // A detail may quote what a client sent, which need not be UTF-8.
  return body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

http::Response problem(const Error& error) {
  http::Response response;
  response.status = http_status(error.code);
  response.content_type = kProblemType;
  response.body = problem_body(error, response.status);
  if (response.status == 401) response.headers = kChallenge;
  if (response.status == 429 || response.status == 503) response.headers = kRetryAfter;
  return response;
}

}  // namespace cairn
