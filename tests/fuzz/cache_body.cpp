// A cache's configuration, as JSON or MessagePack (chosen by the first byte).
#include "server/codec/cache_body.hpp"

#include "tests/fuzz/fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using cairn::WireFormat;
  cairn::fuzz::Input input(data, size);
  const auto format = input.byte() % 2 == 0 ? WireFormat::text : WireFormat::msgpack;
  const auto document = cairn::parse_document(input.rest(), format);
  if (document) static_cast<void>(cairn::read_cache_body(*document, "fuzz"));
  return 0;
}
