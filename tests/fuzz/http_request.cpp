// A request's head, and its body if chunked, arriving in pieces. The first byte is the size of the
// pieces: the result must not depend on it.
#include <algorithm>
#include <optional>
#include <string>

#include "server/http/body_buffer.hpp"
#include "server/http/request_parser.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace {

using cairn::http::BodyBuffer;
using cairn::http::InputBuffer;
using cairn::http::ParseState;
using cairn::http::RequestHead;
using cairn::http::RequestParser;

constexpr std::uint32_t kMaxHeaderBytes = 1024;
constexpr std::uint64_t kMaxBodyBytes = 512;
constexpr std::size_t kBufferBytes = 4096;
constexpr std::uint64_t kBodyMemoryBytes = 1 << 20;

struct Outcome {
  ParseState state = ParseState::need_more;
  std::string head;  // all parsed fields
  std::string body;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

bool within(std::string_view part, const InputBuffer&, const std::byte* begin) {
  const auto* memory = reinterpret_cast<const char*>(begin);
  return part.empty() ||
         (part.data() >= memory && part.data() + part.size() <= memory + kBufferBytes);
}

std::string text_of(const RequestHead& head, const InputBuffer& buffer, const std::byte* begin) {
  std::string all;
  for (std::string_view part :
       {head.path, head.query, head.content_type, head.accept, head.authorization, head.range,
        head.if_range, head.if_none_match, head.last_event_id}) {
    // "/" stands for the missing path of an absolute target.
    cairn::fuzz::must(part == "/" || within(part, buffer, begin), "a view out of the buffer");
    all.append(part).append("\n");
  }
  return all + std::to_string(head.content_length.value_or(7)) + (head.chunked ? "c" : "");
}

Outcome parse(std::span<const std::byte> bytes, std::size_t piece) {
  InputBuffer input(kBufferBytes);
  const std::byte* const begin = input.room().data();
  // Created once for all inputs: creating it costs more than parsing.
  static const auto memory = cairn::http::BodyMemory::create(kBodyMemoryBytes).value();
  BodyBuffer body(*memory);
  RequestParser parser(kMaxHeaderBytes);
  Outcome outcome;
  bool has_head = false;
  while (true) {
    const std::size_t part = std::min({piece, bytes.size(), input.room().size()});
    std::copy_n(bytes.begin(), part, input.room().begin());
    input.commit(part);
    bytes = bytes.subspan(part);
    if (!has_head) {
      outcome.state = parser.read_head(input);
      has_head = outcome.state == ParseState::done;
      if (has_head) outcome.head = text_of(parser.head(), input, begin);
    }
    if (has_head && parser.head().chunked && !input.empty()) {
      outcome.state = parser.read_chunks(input, body, kMaxBodyBytes);
    } else if (has_head && parser.head().chunked) {
      outcome.state = ParseState::need_more;
    }
    if (outcome.state != ParseState::need_more || part == 0) break;
  }
  cairn::fuzz::must(body.size() <= kMaxBodyBytes, "a body over its bound");
  outcome.body.assign(reinterpret_cast<const char*>(body.data().data()), body.size());
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  cairn::fuzz::Input input(data, size);
  const std::size_t piece = input.byte() + std::size_t{1};
  const auto bytes = input.rest().first(std::min(input.rest().size(), kBufferBytes));
  const Outcome whole = parse(bytes, kBufferBytes);
  const Outcome in_pieces = parse(bytes, piece);
  cairn::fuzz::must(whole.head == in_pieces.head || whole.state != in_pieces.state,
                    "the pieces change the head");
  // The pieces may decide which of two faults is found first, but not whether the request is valid.
  cairn::fuzz::must((whole.state == ParseState::done) == (in_pieces.state == ParseState::done),
                    "the pieces decide whether the request is valid");
  if (whole.state == ParseState::done) {
    cairn::fuzz::must(whole == in_pieces, "the pieces change the request");
  }
  return 0;
}
