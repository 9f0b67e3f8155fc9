#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cairn::http {

struct ResponseHead {
  unsigned status = 200;
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
