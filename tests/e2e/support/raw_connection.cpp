#include "tests/e2e/support/raw_connection.hpp"

#include <stdexcept>
#include <utility>

#include "client/response_reader.hpp"

namespace cairn::e2e {
namespace {

constexpr std::uint32_t kTimeoutMs = 60'000;

}  // namespace

RawConnection::RawConnection(const client::Endpoint& endpoint) {
  auto socket = client::Socket::connect(endpoint, kTimeoutMs);
  if (!socket) throw std::runtime_error("no connection: " + socket.error().detail);
  socket_ = std::move(*socket);
}

bool RawConnection::send(std::string_view bytes, PassedFiles files) {
  std::vector<iovec> pieces = {{const_cast<char*>(bytes.data()), bytes.size()}};
  return socket_->send(pieces, std::move(files)).has_value();
}

Reply RawConnection::receive() {
  std::vector<std::byte> buffer(client::ResponseReader::kBufferBytes);
  client::ResponseReader reader(*socket_, buffer);
  auto response = reader.read({.to_head = false, .room = {}});
  if (!response) return {0, response.error().code + ": " + response.error().detail, {}};
  return {response->status, std::move(response->body), std::move(response->headers)};
}

std::string RawConnection::receive_some() {
  std::string bytes(4096, '\0');
  const iovec piece{bytes.data(), bytes.size()};
  const auto count = socket_->receive({&piece, 1});
  bytes.resize(count ? *count : 0);
  return bytes;
}

std::string RawConnection::receive_to_end() {
  std::string all;
  while (true) {
    const std::string bytes = receive_some();
    if (bytes.empty()) return all;
    all += bytes;
  }
}

std::string head_text(std::string_view method, std::string_view target,
                      const std::vector<std::string>& fields) {
  std::string text;
  text.append(method).append(" ").append(target).append(" HTTP/1.1\r\nHost: localhost\r\n");
  for (const std::string& field : fields) text.append(field).append("\r\n");
  return text.append("\r\n");
}

}  // namespace cairn::e2e
