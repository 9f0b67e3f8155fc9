#include "client/http_client.hpp"

#include <boost/beast/core/string.hpp>

#include "base/assert.hpp"
#include "client/response_reader.hpp"

namespace cairn::client {
namespace {

bool is_idempotent(std::string_view method) {
  return method == "GET" || method == "HEAD" || method == "PUT" || method == "DELETE" ||
         method == "OPTIONS";
}

std::size_t total_bytes(std::span<const std::span<const std::byte>> pieces) {
  std::size_t bytes = 0;
  for (const auto& piece : pieces) bytes += piece.size();
  return bytes;
}

void append_field(std::string& head, std::string_view name, std::string_view value) {
  head.append(name).append(": ").append(value).append("\r\n");
}

std::string head_of(const HttpRequest& request, const std::string& authority,
                    const std::string& bearer_token) {
  std::string head;
  head.reserve(256);
  head.append(request.method).append(" ").append(request.target).append(" HTTP/1.1\r\n");
  append_field(head, "Host", authority);
  if (!bearer_token.empty()) append_field(head, "Authorization", "Bearer " + bearer_token);
  for (const HttpHeader& header : request.headers) append_field(head, header.name, header.value);
  const std::size_t body_bytes = total_bytes(request.body);
  if (body_bytes > 0 || request.method == "POST" || request.method == "PUT") {
    append_field(head, "Content-Length", std::to_string(body_bytes));
  }
  return head.append("\r\n");
}

}  // namespace

std::string_view HttpResponse::header(std::string_view name) const {
  for (const auto& [field, value] : headers) {
    if (boost::beast::iequals(field, name)) return value;
  }
  return {};
}

void throw_exception_from_error(const ClientError& error, const boost::source_location& where) {
  static_cast<void>(where);
  invariant_broken("Answer::value", error.code + ": " + error.detail);
}

HttpClient::HttpClient(Endpoint endpoint, HttpOptions options)
    : endpoint_(std::move(endpoint)),
      options_(std::move(options)),
      buffer_(ResponseReader::kBufferBytes) {}

Answer<> HttpClient::connect() {
  auto socket = Socket::connect(endpoint_, options_.timeout_ms, options_.tls);
  if (!socket) return std::move(socket).error();
  socket_ = std::move(*socket);
  return {};
}

Answer<HttpResponse> HttpClient::request(const HttpRequest& request,
                                         std::span<const std::span<std::byte>> room) {
  const bool reused = socket_ && !socket_->stale();
  if (!reused) {
    close();
    CAIRN_TRY(connect());
  }
  auto answer = exchange(request, room);
  if (!answer && reused && answer.error().code == kClosedUnanswered &&
      is_idempotent(request.method)) {
    close();
    CAIRN_TRY(connect());
    answer = exchange(request, room);
  }
  if (!answer) close();
  return answer;
}

Answer<HttpResponse> HttpClient::exchange(const HttpRequest& request,
                                          std::span<const std::span<std::byte>> room) {
  std::string head = head_of(request, endpoint_.authority(), options_.bearer_token);
  std::vector<iovec> pieces;
  pieces.reserve(1 + request.body.size());
  pieces.push_back({head.data(), head.size()});
  for (const auto& piece : request.body) {
    pieces.push_back({const_cast<std::byte*>(piece.data()), piece.size()});
  }
  // A server may refuse a body before it has read it, and close: read its response all the same.
  const auto sent = socket_->send(pieces, request.files);
  if (!sent && sent.error().code == kTimeout) return sent.error();

  ResponseReader reader(*socket_, buffer_);
  auto response = reader.read(
      {.to_head = request.method == "HEAD", .room = room, .take_text = request.take_text});
  if (response) response->files = socket_->arrived_files();
  if (!sent && !response) {
    ClientError error = std::move(response).error();
    error.detail = sent.error().detail + "; " + error.detail;
    return error;
  }
  if (response && (!sent || !reader.keep_alive())) close();
  return response;
}

}  // namespace cairn::client
