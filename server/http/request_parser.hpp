#pragma once

#include <boost/beast/http/basic_parser.hpp>
#include <cstdint>

#include "server/http/body_buffer.hpp"
#include "server/http/input_buffer.hpp"
#include "server/http/message.hpp"

namespace cairn::http {

enum class ParseState : std::uint8_t {
  done,
  need_more,
  malformed,
  bad_version,
  header_too_large,
  body_too_large,
  out_of_memory,
  no_host,              // more than one Host field, or HTTP/1.1 without one
  unknown_coding,       // a Transfer-Encoding other than chunked
  unknown_expectation,  // an Expect other than 100-continue
};

// Parses one request: its head, then its body if that is chunked. Copies nothing: the head's views
// point into the input buffer. Use one parser per request.
class RequestParser final : private boost::beast::http::basic_parser<true> {
 public:
  explicit RequestParser(std::uint32_t max_header_bytes);

  // Consumes `input` up to the end of the head. Skips a few empty lines first, because some clients
  // send one after a body (RFC 9112, 2.2).
  ParseState read_head(InputBuffer& input);
  // Consumes chunks from `input` and appends their data to `body`; done at the body's end.
  ParseState read_chunks(InputBuffer& input, BodyBuffer& body, std::uint64_t limit_bytes);

  bool begun() const { return got_some(); }
  // Complete once read_head() is done.
  RequestHead& head() { return head_; }
  bool keep_alive() const { return basic_parser::keep_alive() && !closes_; }
  bool http10() const { return http10_; }
  bool expects_continue() const { return expects_continue_ && !http10_; }

 private:
  using Error = boost::beast::error_code;
  using Text = boost::beast::string_view;

  void on_request_impl(boost::beast::http::verb verb, Text method, Text target, int version,
                       Error& ec) override;
  void on_response_impl(int code, Text reason, int version, Error& ec) override;
  void on_field_impl(boost::beast::http::field field, Text name, Text value, Error& ec) override;
  void on_header_impl(Error& ec) override;
  void on_body_init_impl(const boost::optional<std::uint64_t>& length, Error& ec) override;
  std::size_t on_body_impl(Text bytes, Error& ec) override;
  void on_chunk_header_impl(std::uint64_t size, Text extensions, Error& ec) override;
  std::size_t on_chunk_body_impl(std::uint64_t remain, Text bytes, Error& ec) override;
  void on_finish_impl(Error& ec) override;
  bool skip_empty_lines(InputBuffer& input);
  ParseState state_of(const Error& ec) const;

  const std::uint32_t max_header_bytes_;
  std::uint32_t header_left_bytes_;
  RequestHead head_;
  std::uint32_t empty_lines_ = 0;
  bool http10_ = false;
  bool closes_ = false;  // after the answer; overrides other Connection options
  bool expects_continue_ = false;
  std::uint32_t host_fields_ = 0;
  bool absolute_target_ = false;        // its host overrides the Host field
  std::span<const std::byte> reading_;  // current input
  BodyBuffer* body_ = nullptr;
  // Bytes left for chunk lines and trailers: a few per chunk, and the limit of a head.
  std::uint64_t framing_left_bytes_;
  std::uint64_t body_limit_bytes_ = 0;
};

}  // namespace cairn::http
