#include "server/http/response_head.hpp"

#include <boost/beast/http/status.hpp>
#include <charconv>
#include <ctime>

namespace cairn::http {
namespace {

// A page of another origin can request any address. These fields stop its browser from using an
// answer as a script, and from loading it into the page's process. No answer allows another origin
// to read it.
constexpr std::string_view kForBrowsers =
    "X-Content-Type-Options: nosniff\r\nCross-Origin-Resource-Policy: same-origin\r\n";

void append_number(std::string& out, std::uint64_t number) {
  char digits[20];
  const auto end = std::to_chars(digits, digits + sizeof digits, number).ptr;
  out.append(digits, end);
}

}  // namespace

std::string_view DateLine::at(std::int64_t unix_ms) {
  const std::int64_t unix_s = unix_ms / 1000;
  if (unix_s == unix_s_) return line_;
  // Not strftime, which uses the locale of the process.
  static constexpr std::string_view kDays = "SunMonTueWedThuFriSat";
  static constexpr std::string_view kMonths = "JanFebMarAprMayJunJulAugSepOctNovDec";
  const auto time = static_cast<std::time_t>(unix_s);
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  const auto name = [](std::string_view names, int index) {
    return std::string(names.substr(static_cast<std::size_t>(index) * 3, 3));
  };
  const auto two = [](int number) {
    return std::string{static_cast<char>('0' + number / 10), static_cast<char>('0' + number % 10)};
  };
  line_ = "Date: " + name(kDays, parts.tm_wday) + ", " + two(parts.tm_mday) + " " +
          name(kMonths, parts.tm_mon) + " " + std::to_string(parts.tm_year + 1900) + " " +
          two(parts.tm_hour) + ":" + two(parts.tm_min) + ":" + two(parts.tm_sec) + " GMT\r\n";
  unix_s_ = unix_s;
  return line_;
}

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
  out += head.date;
  out += kForBrowsers;
  out += head.headers;
  out += "\r\n";
}

}  // namespace cairn::http
