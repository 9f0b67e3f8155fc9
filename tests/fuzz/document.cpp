// A body of a rare route as JSON or MessagePack (chosen by the first byte), and a cache's
// configuration read from it. A parsed document can be written and read again, and stays the same.
#include "server/codec/document.hpp"

#include "server/codec/cache_body.hpp"
#include "tests/fuzz/fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using cairn::WireFormat;
  cairn::fuzz::Input input(data, size);
  const auto format = input.byte() % 2 == 0 ? WireFormat::text : WireFormat::msgpack;
  const auto document = cairn::parse_document(input.rest(), format);
  if (!document) return 0;
  const std::string written =
      cairn::write_document(cairn::ordered_json(*document), WireFormat::msgpack);
  const auto again = cairn::parse_document(std::as_bytes(std::span(written)), WireFormat::msgpack);
  cairn::fuzz::must(again.has_value(), "what was written is refused");
  return 0;
}
