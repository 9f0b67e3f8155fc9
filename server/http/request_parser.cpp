#include "server/http/request_parser.hpp"

#include <algorithm>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/error.hpp>
#include <functional>

#include "base/assert.hpp"

namespace cairn::http {
namespace {

namespace beast = boost::beast;
using beast::http::field;
using beast::http::verb;
using ReadError = beast::http::error;

std::string_view view(beast::string_view text) { return {text.data(), text.size()}; }

// "http://host:port/path" as a client of a proxy would say it; of the usual "/path" there is no
// host.
struct Target {
  std::optional<std::string_view> host = {};
  std::string_view path;
};
Target split_target(std::string_view target) {
  constexpr std::string_view kScheme = "http://";
  if (!target.starts_with(kScheme)) return {.path = target};
  target.remove_prefix(kScheme.size());
  const std::size_t path = std::min(target.find_first_of("/?"), target.size());
  return {.host = target.substr(0, path),
          .path = path == target.size() ? std::string_view("/") : target.substr(path)};
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

ParseState state_of(const beast::error_code& ec) {
  if (ec == ReadError::need_more) return ParseState::need_more;
  if (ec == ReadError::header_limit) return ParseState::header_too_large;
  if (ec == ReadError::body_limit) return ParseState::body_too_large;
  if (ec == ReadError::bad_version) return ParseState::bad_version;
  if (ec == boost::system::errc::not_enough_memory) return ParseState::out_of_memory;
  if (ec == boost::system::errc::not_supported) return ParseState::unknown_coding;
  return ParseState::malformed;
}

}  // namespace

RequestParser::RequestParser(std::uint32_t max_header_bytes)
    : header_left_bytes_(max_header_bytes) {
  header_limit(max_header_bytes);
  // Bodies are counted by whoever takes them.
  body_limit(boost::none);
}

ParseState RequestParser::read_head(InputBuffer& input) {
  // Beast reads the request line and some fields and leaves the rest for the next call; its own
  // limit starts anew with each of them.
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
  // RFC 9112, 3.2: one whose host is in doubt is refused.
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
    input.consume(put({reading_.data(), reading_.size()}, ec));
    if (ec) return state_of(ec);
  }
  return ParseState::done;
}

void RequestParser::on_request_impl(verb v, Text, Text target, int version, Error&) {
  head_.method = method_of(v);
  http10_ = version == 10;
  const Target asked = split_target(view(target));
  absolute_target_ = asked.host.has_value();
  head_.host = asked.host;
  const std::size_t mark = asked.path.find('?');
  head_.path = asked.path.substr(0, mark);
  if (mark != std::string_view::npos) head_.query = asked.path.substr(mark + 1);
}

void RequestParser::on_field_impl(field f, Text name, Text value, Error& ec) {
  if (body_ != nullptr) return;  // a trailer: none means anything to us
  // Beast joins the lines of a folded value in memory of its own; RFC 9112 has servers refuse them.
  const auto* begin = reinterpret_cast<const char*>(reading_.data());
  const std::less_equal<const char*> not_after;
  if (!value.empty() && !(not_after(begin, value.data()) &&
                          not_after(value.data() + value.size(), begin + reading_.size()))) {
    ec = ReadError::bad_obs_fold;
    return;
  }
  switch (f) {
    case field::host:
      ++host_fields_;
      if (!absolute_target_) head_.host = view(value);  // RFC 9112, 3.2.2
      return;
    case field::origin:
      head_.origin = view(value);
      return;
    case field::sec_fetch_site:
      head_.sec_fetch_site = view(value);
      return;
    case field::content_type:
      head_.content_type = view(value);
      return;
    case field::content_encoding:
      head_.content_encoding = view(value);
      return;
    case field::accept:
      head_.accept = view(value);
      return;
    case field::authorization:
      head_.authorization = view(value);
      return;
    case field::range:
      head_.range = view(value);
      return;
    case field::if_range:
      head_.if_range = view(value);
      return;
    case field::if_none_match:
      head_.if_none_match = view(value);
      return;
    case field::expect:
      expects_continue_ = beast::iequals(value, "100-continue");
      return;
    case field::transfer_encoding:
      // Taken for plain bytes, another coding would be stored as something it is not.
      if (!beast::iequals(value, "chunked")) {
        ec = boost::system::errc::make_error_code(boost::system::errc::not_supported);
      }
      return;
    case field::unknown:  // none of those that Beast knows
      if (beast::iequals(name, "Last-Event-ID")) head_.last_event_id = view(value);
      if (beast::iequals(name, "traceparent")) head_.traceparent = view(value);
      return;
    default:
      return;
  }
}

void RequestParser::on_chunk_header_impl(std::uint64_t size, Text, Error& ec) {
  if (size > body_limit_bytes_ - body_->size()) ec = ReadError::body_limit;
}

std::size_t RequestParser::on_chunk_body_impl(std::uint64_t, Text bytes, Error& ec) {
  if (!body_->append(std::as_bytes(std::span(bytes.data(), bytes.size())))) {
    ec = boost::system::errc::make_error_code(boost::system::errc::not_enough_memory);
  }
  return bytes.size();
}

// Bodies of a known length do not pass through the parser, and requests have no others.
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
