#pragma once

#include <boost/system/result.hpp>
#include <cstdint>
#include <string>
#include <utility>

namespace cairn::client {

// Codes of a ClientError that did not come from the server (status 0).
inline constexpr const char* kNotConnected = "not_connected";  // nothing accepted the connection
inline constexpr const char* kClosedUnanswered = "closed_unanswered";  // no byte of an answer came
inline constexpr const char* kClosedEarly = "closed_early";            // part of an answer came
inline constexpr const char* kTimeout = "timeout";
inline constexpr const char* kBadAnswer = "bad_answer";  // not HTTP, or not what the contract says

// Why a request has no result: what the server answered (its status and the `code` and `detail` of
// its problem+json), or, with status 0, why there is no answer.
struct ClientError {
  // Not an aggregate: boost's result would take any number for an error that starts with one.
  ClientError() = default;
  ClientError(unsigned http_status, std::string stable_code, std::string text)
      : status(http_status), code(std::move(stable_code)), detail(std::move(text)) {}

  unsigned status = 0;
  std::string code;
  std::string detail;
  std::uint32_t retry_after_ms = 0;  // what Retry-After asked for; 0 where it asked for nothing
};

// A value or a ClientError. Asking a failed one for its value is a broken invariant and aborts.
template <class T = void>
class [[nodiscard]] Answer : public boost::system::result<T, ClientError> {
 public:
  using boost::system::result<T, ClientError>::result;
};

[[noreturn]] void throw_exception_from_error(const ClientError& error,
                                             const boost::source_location& where);

}  // namespace cairn::client
