// A Range field for a body whose length is given by the first bytes, and the same text as
// If-None-Match.
#include "server/codec/byte_range.hpp"

#include "tests/fuzz/fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  cairn::fuzz::Input input(data, size);
  const std::uint64_t total = std::uint64_t{input.byte()} << (input.byte() % 57);
  const auto range = cairn::parse_range(input.text(), total);
  if (range && *range) {
    const cairn::ByteRange& found = **range;
    cairn::fuzz::must(found.size_bytes >= 1, "an empty range");
    cairn::fuzz::must(found.offset_bytes < total && found.size_bytes <= total - found.offset_bytes,
                      "a range past the end");
  }
  static_cast<void>(cairn::names_etag(input.text(), "\"aa01-256\""));
  return 0;
}
