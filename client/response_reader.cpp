#include "client/response_reader.hpp"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstring>
#include <optional>
#include <string>

#include "base/assert.hpp"

namespace cairn::client {
namespace {

namespace beast_http = boost::beast::http;

// Longer than any head of the contract. Beast refuses a longer one.
constexpr std::uint32_t kMaxHeadBytes = 16 * 1024;
static_assert(ResponseReader::kBufferBytes >= kMaxHeadBytes, "a head is parsed in one piece");

ClientError bad_answer(std::string detail) { return {0, kBadAnswer, std::move(detail)}; }

ClientError too_long(std::uint64_t body_bytes, std::size_t room_bytes) {
  return bad_answer("a body of " + std::to_string(body_bytes) + " bytes, with room for " +
                    std::to_string(room_bytes));
}

std::size_t total_bytes(std::span<const std::span<std::byte>> room) {
  std::size_t bytes = 0;
  for (const auto& piece : room) bytes += piece.size();
  return bytes;
}

// The part of `room` from byte `skip` on, `length` bytes long.
std::vector<iovec> part_of(std::span<const std::span<std::byte>> room, std::size_t skip,
                           std::size_t length) {
  std::vector<iovec> part;
  for (std::span<std::byte> piece : room) {
    const std::size_t skipped = std::min(skip, piece.size());
    skip -= skipped;
    piece = piece.subspan(skipped);
    const std::size_t taken = std::min(length, piece.size());
    length -= taken;
    if (taken > 0) part.push_back({piece.data(), taken});
  }
  return part;
}

void copy_into(std::span<const iovec> part, std::span<const std::byte> bytes) {
  for (const iovec& piece : part) {
    std::memcpy(piece.iov_base, bytes.data(), piece.iov_len);
    bytes = bytes.subspan(piece.iov_len);
  }
}

}  // namespace

struct ResponseReader::Parsing {
  beast_http::response_parser<beast_http::string_body> parser;
};

ResponseReader::ResponseReader(Socket& socket, std::span<std::byte> buffer)
    : socket_(socket), buffer_(buffer) {
  CAIRN_ASSERT(buffer.size() >= kBufferBytes, "a head would not fit");
}

std::span<const std::byte> ResponseReader::unread() const {
  return buffer_.subspan(begin_, end_ - begin_);
}

Answer<std::size_t> ResponseReader::fill() {
  std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
  if (end_ == buffer_.size()) return bad_answer("a head without an end");
  const iovec room{buffer_.data() + end_, buffer_.size() - end_};
  auto received = socket_.receive({&room, 1});
  if (received) end_ += *received;
  return received;
}

Answer<> ResponseReader::read_head(Parsing& parsing) {
  while (true) {
    if (begin_ < end_) {
      boost::system::error_code failure;
      begin_ +=
          parsing.parser.put(boost::asio::const_buffer(unread().data(), unread().size()), failure);
      if (failure && failure != beast_http::error::need_more) return bad_answer(failure.message());
      if (parsing.parser.is_header_done()) return {};
    }
    auto received = fill();
    if (received && *received > 0) continue;
    ClientError error =
        received ? ClientError{0, kClosedEarly, "the server closed"} : std::move(received).error();
    if (error.code == kClosedEarly && end_ == 0) error.code = kClosedUnanswered;
    return error;
  }
}

Answer<> ResponseReader::read_text_body(Parsing& parsing,
                                        const std::function<bool(std::string_view)>* take) {
  auto& parser = parsing.parser;
  parser.eager(true);
  // Returns false if the taker wants no more.
  const auto hand_over = [&parser, take] {
    std::string& body = parser.get().body();
    if (take == nullptr || body.empty()) return true;
    const bool goes_on = (*take)(body);
    body.clear();
    return goes_on;
  };
  while (!parser.is_done()) {
    boost::system::error_code failure;
    if (begin_ < end_) {
      begin_ += parser.put(boost::asio::const_buffer(unread().data(), unread().size()), failure);
      if (failure && failure != beast_http::error::need_more) return bad_answer(failure.message());
      if (!hand_over()) return {};
      if (parser.is_done()) break;
    }
    if (parser.get().body().size() > HttpClient::kMaxTextBytes) {
      return too_long(parser.get().body().size(), HttpClient::kMaxTextBytes);
    }
    auto received = fill();
    if (!received) return std::move(received).error();
    if (*received == 0) {
      parser.put_eof(failure);
      if (failure) return ClientError{0, kClosedEarly, "the server closed within a body"};
    }
  }
  return {};
}

Answer<std::size_t> ResponseReader::read_body_into(std::span<const std::span<std::byte>> room,
                                                   std::size_t body_bytes) {
  std::size_t done = std::min(body_bytes, end_ - begin_);
  copy_into(part_of(room, 0, done), unread().first(done));
  begin_ += done;
  while (done < body_bytes) {
    auto received = socket_.receive(part_of(room, done, body_bytes - done));
    if (!received) return std::move(received).error();
    if (*received == 0) return ClientError{0, kClosedEarly, "the server closed within a body"};
    done += *received;
  }
  return done;
}

Answer<HttpResponse> ResponseReader::read(const Expected& expected) {
  std::optional<Parsing> parsing;
  do {  // skips 1xx responses
    parsing.emplace();
    parsing->parser.header_limit(kMaxHeadBytes);
    parsing->parser.body_limit(boost::none);  // limited below, once the target is known
    parsing->parser.skip(expected.to_head);
    CAIRN_TRY(read_head(*parsing));
  } while (parsing->parser.get().result_int() / 100 == 1);

  auto& parser = parsing->parser;
  HttpResponse response;
  response.status = parser.get().result_int();
  for (const auto& field : parser.get()) {
    response.headers.emplace_back(field.name_string(), field.value());
  }
  keep_alive_ = parser.keep_alive();
  const std::uint64_t announced = parser.content_length().value_or(0);
  const std::size_t room_bytes = total_bytes(expected.room);
  const bool use_room = room_bytes > 0 && response.status / 100 == 2 && !expected.to_head;
  const std::size_t bound = use_room ? room_bytes : HttpClient::kMaxTextBytes;
  if (!expected.to_head && announced > bound) return too_long(announced, bound);
  if (use_room && announced > 0) {
    auto done = read_body_into(expected.room, announced);
    if (!done) return std::move(done).error();
    response.room_bytes = *done;
  } else {
    if (!expected.to_head) parser.get().body().reserve(announced);
    const bool is_taken = expected.take_text != nullptr && response.status / 100 == 2;
    CAIRN_TRY(read_text_body(*parsing, is_taken ? expected.take_text : nullptr));
    response.body = std::move(parser.get().body());
    if (use_room) {  // a chunked body, or one that ends with the connection
      if (response.body.size() > room_bytes) return too_long(response.body.size(), room_bytes);
      copy_into(part_of(expected.room, 0, response.body.size()),
                std::as_bytes(std::span(response.body)));
      response.room_bytes = response.body.size();
      response.body.clear();
    }
  }
  // The next request would take unrequested bytes for its response.
  keep_alive_ = keep_alive_ && begin_ == end_ && parser.is_done();
  return response;
}

}  // namespace cairn::client
