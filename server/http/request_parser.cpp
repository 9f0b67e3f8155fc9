#include "server/http/request_parser.hpp"

#include <algorithm>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/rfc7230.hpp>
#include <functional>

#include "base/assert.hpp"

namespace cairn::http {
namespace {

namespace beast = boost::beast;
using beast::http::field;
using beast::http::verb;
using ReadError = beast::http::error;

// Before one request. RFC 9112, 2.2 asks for at least one.
constexpr std::uint32_t kMostEmptyLines = 8;
// Size of a chunk's line with its line ends, unless padded.
constexpr std::uint64_t kChunkLineBytes = 16;

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string_view view(beast::string_view text) { return {text.data(), text.size()}; }

// "http://host:port/path" as sent to a proxy, or the usual "/path" without a host.
struct Target {
  std::optional<std::string_view> host = {};
  std::string_view path;
  std::string_view query = {};
};
// Returns nullopt for forms that a server does not accept (RFC 9112, 3.2).
std::optional<Target> split_target(verb method, std::string_view target) {
  if (target.find('#') != std::string_view::npos) return std::nullopt;
  Target found{.path = target};
  if (target.front() != '/') {
    if (target == "*") return method == verb::options ? std::optional(found) : std::nullopt;
    const std::size_t colon = target.find("://");
    if (colon == std::string_view::npos) return std::nullopt;
    const beast::string_view scheme(target.data(), colon);
    if (!beast::iequals(scheme, "http") && !beast::iequals(scheme, "https")) return std::nullopt;
    target.remove_prefix(colon + 3);
    const std::size_t path = std::min(target.find_first_of("/?"), target.size());
    found = {.host = target.substr(0, path), .path = target.substr(path)};
    // No host, or user information (RFC 9110, 4.2.1 and 4.2.4).
    if (path == 0 || found.host->find('@') != std::string_view::npos) return std::nullopt;
  }
  const std::size_t mark = std::min(found.path.find('?'), found.path.size());
  if (mark < found.path.size()) found.query = found.path.substr(mark + 1);
  found.path = mark == 0 ? std::string_view("/") : found.path.substr(0, mark);
  return found;
}

// True for "HTTP/2.0", for example. Beast reports the same error for text that is no version, or
// for text after a known one.
bool names_another_version(std::string_view head) {
  const std::string_view line = head.substr(0, head.find_first_of("\r\n"));
  const std::string_view word = line.substr(line.rfind(' ') + 1);
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  return word.size() == 8 && word.starts_with("HTTP/") && digit(word[5]) && word[6] == '.' &&
         digit(word[7]) && word != "HTTP/1.0" && word != "HTTP/1.1";
}

// True if Beast has joined the lines of a folded value: in its own memory, or from the first line
// that is not empty. `rest` is the input from the field's name on.
bool is_folded(std::string_view rest, std::size_t name_bytes, std::string_view value) {
  constexpr std::size_t kLeastFold = 4;  // a colon, the line's end and a space
  const std::less<> before;
  const char* const colon = rest.data() + name_bytes;
  if (before(value.data(), colon) || before(rest.data() + rest.size(), value.data())) return true;
  const auto gap_bytes = static_cast<std::size_t>(value.data() - colon);
  return gap_bytes >= kLeastFold &&
         std::string_view(colon, gap_bytes).find('\r') != std::string_view::npos;
}

// A coding after chunked would hide where the body ends; one before it is only unsupported.
bool ends_in_chunked(std::string_view codings) {
  constexpr std::string_view kChunked = "chunked";
  const std::size_t start = codings.rfind(',') + 1;
  std::string_view last = codings.substr(start);
  last.remove_prefix(std::min(last.find_first_not_of(" \t"), last.size()));
  if (!beast::iequals(last, beast::string_view(kChunked.data(), kChunked.size()))) return false;
  // Named twice, it would have been applied twice.
  return start == 0 || !ends_in_chunked(codings.substr(0, start - 1));
}

Method method_of(verb v) {
  switch (v) {
    case verb::get:
      return Method::get;
    case verb::head:
      return Method::head;
    case verb::put:
      return Method::put;
    case verb::post:
      return Method::post;
    case verb::patch:
      return Method::patch;
    case verb::delete_:
      return Method::delete_;
    case verb::options:
      return Method::options;
    default:
      return Method::other;
  }
}

// Rejects a second field: another program might use that one.
void take_once(std::string_view& field, std::string_view value, beast::error_code& ec) {
  if (field.data() != nullptr) ec = ReadError::bad_field;
  field = value;
}

}  // namespace

RequestParser::RequestParser(std::uint32_t max_header_bytes)
    : max_header_bytes_(max_header_bytes),
      header_left_bytes_(max_header_bytes),
      framing_left_bytes_(max_header_bytes) {
  header_limit(max_header_bytes);
  // The code that takes a body checks its size.
  body_limit(boost::none);
}

ParseState RequestParser::state_of(const Error& ec) const {
  if (ec == ReadError::need_more) return ParseState::need_more;
  if (ec == ReadError::body_limit) return ParseState::body_too_large;
  // Beast reports its limit on folded values with the same error.
  if (ec == ReadError::header_limit && reading_.size() >= max_header_bytes_) {
    return ParseState::header_too_large;
  }
  if (ec == ReadError::bad_version && names_another_version(text_of(reading_))) {
    return ParseState::bad_version;
  }
  if (ec == boost::system::errc::not_enough_memory) return ParseState::out_of_memory;
  if (ec == boost::system::errc::not_supported) return ParseState::unknown_coding;
  if (ec == boost::system::errc::protocol_not_supported) return ParseState::unknown_expectation;
  return ParseState::malformed;
}

bool RequestParser::skip_empty_lines(InputBuffer& input) {
  while (text_of(input.data()).starts_with("\r\n")) {
    if (++empty_lines_ > kMostEmptyLines) return false;
    input.consume(2);
  }
  return true;
}

ParseState RequestParser::read_head(InputBuffer& input) {
  if (!begun()) {
    if (!skip_empty_lines(input)) return ParseState::malformed;
    // Half of an empty line is not a request yet.
    if (text_of(input.data()) == "\r") return ParseState::need_more;
  }
  // Beast may read only the request line and some fields, and leaves the rest for the next call.
  // Its own limit starts again with each call.
  reading_ = input.data();
  Error ec;
  const std::size_t used = put({reading_.data(), reading_.size()}, ec);
  input.consume(used);
  if (used > header_left_bytes_) return ParseState::header_too_large;
  header_left_bytes_ -= static_cast<std::uint32_t>(used);
  if (ec) {
    const ParseState found = state_of(ec);
    const bool full = input.size() >= header_left_bytes_;
    return found == ParseState::need_more && full ? ParseState::header_too_large : found;
  }
  // RFC 9112, 3.2: refuse a request whose host is unclear.
  if (host_fields_ > 1 || (host_fields_ == 0 && !http10_)) return ParseState::no_host;
  head_.chunked = chunked();
  if (!head_.chunked) {
    if (const auto length = content_length()) head_.content_length = *length;
  }
  return ParseState::done;
}

ParseState RequestParser::read_chunks(InputBuffer& input, BodyBuffer& body,
                                      std::uint64_t limit_bytes) {
  body_ = &body;
  body_limit_bytes_ = limit_bytes;
  while (!is_done()) {
    if (input.empty()) return ParseState::need_more;
    Error ec;
    reading_ = input.data();
    const std::uint64_t before_bytes = body.size();
    const std::size_t used = put({reading_.data(), reading_.size()}, ec);
    input.consume(used);
    if (ec && ec != ReadError::need_more) return state_of(ec);
    const std::uint64_t framing_bytes = used - (body.size() - before_bytes);
    if (framing_bytes > framing_left_bytes_) return ParseState::malformed;
    framing_left_bytes_ -= framing_bytes;
    if (ec) return ParseState::need_more;
  }
  return ParseState::done;
}

void RequestParser::on_request_impl(verb v, Text, Text target, int version, Error& ec) {
  head_.method = method_of(v);
  http10_ = version == 10;
  const auto asked = split_target(v, view(target));
  if (!asked) {
    ec = ReadError::bad_target;
    return;
  }
  absolute_target_ = asked->host.has_value();
  head_.host = asked->host;
  head_.path = asked->path;
  head_.query = asked->query;
}

void RequestParser::on_field_impl(field f, Text name, Text value, Error& ec) {
  // RFC 9112, 5.2: servers refuse folded fields.
  const auto* const end = reinterpret_cast<const char*>(reading_.data() + reading_.size());
  if (is_folded({name.data(), end}, name.size(), view(value))) {
    ec = ReadError::bad_obs_fold;
    return;
  }
  if (body_ != nullptr) return;  // trailers are ignored
  switch (f) {
    case field::host:
      ++host_fields_;
      if (!absolute_target_) head_.host = view(value);  // RFC 9112, 3.2.2
      return;
    case field::origin:
      return take_once(head_.origin, view(value), ec);
    case field::sec_fetch_site:
      return take_once(head_.sec_fetch_site, view(value), ec);
    case field::content_type:
      return take_once(head_.content_type, view(value), ec);
    case field::content_encoding:
      return take_once(head_.content_encoding, view(value), ec);
    case field::accept:
      head_.accept = view(value);
      return;
    case field::authorization:
      return take_once(head_.authorization, view(value), ec);
    case field::range:
      return take_once(head_.range, view(value), ec);
    case field::if_range:
      return take_once(head_.if_range, view(value), ec);
    case field::if_none_match:
      head_.if_none_match = view(value);
      return;
    case field::expect:
      if (beast::iequals(value, "100-continue")) {
        expects_continue_ = true;
      } else if (!value.empty() && !http10_) {
        ec = boost::system::errc::make_error_code(boost::system::errc::protocol_not_supported);
      }
      return;
    case field::connection:
      for (const auto option : beast::http::token_list(value)) {
        closes_ = closes_ || beast::iequals(option, "close");
      }
      return;
    case field::transfer_encoding:
      // RFC 9112, 6.1: the framing of HTTP/1.0 with Transfer-Encoding is unreliable.
      if (http10_ || !ends_in_chunked(view(value))) {
        ec = ReadError::bad_transfer_encoding;
      } else if (!beast::iequals(value, "chunked")) {
        // Another coding would be stored as if it were plain bytes.
        ec = boost::system::errc::make_error_code(boost::system::errc::not_supported);
      }
      return;
    case field::unknown:  // not known to Beast
      if (beast::iequals(name, "Last-Event-ID")) head_.last_event_id = view(value);
      if (beast::iequals(name, "traceparent")) head_.traceparent = view(value);
      return;
    default:
      return;
  }
}

void RequestParser::on_chunk_header_impl(std::uint64_t size, Text extensions, Error& ec) {
  framing_left_bytes_ += kChunkLineBytes;
  // Beast takes any byte between quotes, but others may see the end of a line there.
  const auto is_control = [](unsigned char c) { return (c < ' ' && c != '\t') || c == 0x7f; };
  if (std::ranges::any_of(extensions, is_control)) ec = ReadError::bad_chunk_extension;
  if (size > body_limit_bytes_ - body_->size()) ec = ReadError::body_limit;
}

std::size_t RequestParser::on_chunk_body_impl(std::uint64_t, Text bytes, Error& ec) {
  if (!body_->append(std::as_bytes(std::span(bytes.data(), bytes.size())))) {
    ec = boost::system::errc::make_error_code(boost::system::errc::not_enough_memory);
  }
  return bytes.size();
}

// The parser reads only requests, and no bodies of known length.
std::size_t RequestParser::on_body_impl(Text, Error&) {
  invariant_broken("a body is not given to the parser", "its bytes would be lost");
}
void RequestParser::on_response_impl(int, Text, int, Error&) {
  invariant_broken("requests only", "a response would be taken for a request");
}
void RequestParser::on_header_impl(Error&) {}
void RequestParser::on_body_init_impl(const boost::optional<std::uint64_t>&, Error&) {}
void RequestParser::on_finish_impl(Error&) {}

}  // namespace cairn::http
