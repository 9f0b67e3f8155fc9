#pragma once

#include <boost/system/result.hpp>
#include <cstdint>
#include <string>
#include <utility>

namespace cairn::client {

// Codes of a ClientError that did not come from the server (status 0).
inline constexpr const char* kNotConnected = "not_connected";  // nothing accepted the connection
inline constexpr const char* kClosedUnanswered = "closed_unanswered";  // no response byte came
inline constexpr const char* kClosedEarly = "closed_early";            // part of a response came
inline constexpr const char* kTimeout = "timeout";
inline constexpr const char* kBadAnswer = "bad_answer";  // not HTTP, or not as the contract says

// Why a request failed: the status of the response and the `code` and `detail` of its problem+json.
// With status 0 there was no valid response, and `code` is one of the above.
struct ClientError {
  // Not an aggregate: otherwise boost's result would convert any number to an error.
  ClientError() = default;
  ClientError(unsigned http_status, std::string stable_code, std::string text)
      : status(http_status), code(std::move(stable_code)), detail(std::move(text)) {}

  unsigned status = 0;
  std::string code;
  std::string detail;
  std::uint32_t retry_after_ms = 0;  // from Retry-After; 0: none
};

// A value or a ClientError. value() of a failed answer aborts.
template <class T = void>
class [[nodiscard]] Answer : public boost::system::result<T, ClientError> {
 public:
  using boost::system::result<T, ClientError>::result;
};

[[noreturn]] void throw_exception_from_error(const ClientError& error,
                                             const boost::source_location& where);

}  // namespace cairn::client
