#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cairn::http {

// The Date field (RFC 9110, 6.6.1) of one network thread, formatted once per second.
class DateLine {
 public:
  // "Date: Sun, 06 Nov 1994 08:49:37 GMT" with its line end. Valid until the next call.
  std::string_view at(std::int64_t unix_ms);

 private:
  std::int64_t unix_s_ = -1;
  std::string line_;
};

struct ResponseHead {
  unsigned status = 200;
  std::string_view date;  // from DateLine
  std::string_view content_type;
  std::string_view headers;                     // complete lines
  std::optional<std::uint64_t> content_length;  // nullopt: not announced
  bool chunked = false;
  bool keep_alive = true;
  bool http10 = false;  // HTTP/1.0 needs an explicit keep-alive
};

// Appends the status line and the fields, including the final empty line.
void append_head(std::string& out, const ResponseHead& head);

}  // namespace cairn::http
