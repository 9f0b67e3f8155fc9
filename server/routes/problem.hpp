#pragma once

#include <string>
#include <string_view>

#include "base/error.hpp"
#include "server/http/message.hpp"

namespace cairn {

// The HTTP status of an error. Only this function maps one to the other.
unsigned http_status(ErrorCode code);

inline constexpr std::string_view kProblemType = "application/problem+json";

// An RFC 9457 problem body: {type, title, status, detail, code}.
std::string problem_body(const Error& error, unsigned status);

// The error as a response, with Retry-After if the client may retry (429, 503).
http::Response problem(const Error& error);

}  // namespace cairn
