#include "server/http/response_head.hpp"

#include <boost/beast/http/status.hpp>
#include <charconv>

namespace cairn::http {
namespace {

// A page of another origin can ask for any address: its browser is told not to take what comes for
// a script, nor to let the page's process have it (no answer here allows another origin to read
// it).
constexpr std::string_view kForBrowsers =
    "X-Content-Type-Options: nosniff\r\nCross-Origin-Resource-Policy: same-origin\r\n";

void append_number(std::string& out, std::uint64_t number) {
  char digits[20];
  const auto end = std::to_chars(digits, digits + sizeof digits, number).ptr;
  out.append(digits, end);
}

}  // namespace

void append_head(std::string& out, const ResponseHead& head) {
  const boost::beast::string_view reason =
      boost::beast::http::obsolete_reason(boost::beast::http::int_to_status(head.status));
  out += "HTTP/1.1 ";
  append_number(out, head.status);
  out += ' ';
  out.append(reason.data(), reason.size());
  if (!head.content_type.empty()) {
    out += "\r\nContent-Type: ";
    out += head.content_type;
  }
  if (head.content_length) {
    out += "\r\nContent-Length: ";
    append_number(out, *head.content_length);
  }
  if (head.chunked) out += "\r\nTransfer-Encoding: chunked";
  if (!head.keep_alive) {
    out += "\r\nConnection: close";
  } else if (head.http10) {
    out += "\r\nConnection: keep-alive";
  }
  out += "\r\n";
  out += kForBrowsers;
  out += head.headers;
  out += "\r\n";
}

}  // namespace cairn::http
