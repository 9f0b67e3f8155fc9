#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cairn::http {

// The Date field (RFC 9110, 6.6.1) of one network thread: written once a second, not once an
// answer.
class DateLine {
 public:
  // "Date: Sun, 06 Nov 1994 08:49:37 GMT" and the line's end; valid until the next call.
  std::string_view at(std::int64_t unix_ms);

 private:
  std::int64_t unix_s_ = -1;
  std::string line_;
};

struct ResponseHead {
  unsigned status = 200;
  std::string_view date;  // a DateLine's
  std::string_view content_type;
  std::string_view headers;                     // whole lines
  std::optional<std::uint64_t> content_length;  // nothing: none is announced
  bool chunked = false;
  bool keep_alive = true;
  bool http10 = false;  // asked in HTTP/1.0, where keep-alive has to be said
};

// Appends the status line and the fields up to and with the empty line.
void append_head(std::string& out, const ResponseHead& head);

}  // namespace cairn::http
