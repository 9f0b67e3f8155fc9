// Encoded blocks, which come from a store that is not trusted or from a damaged disk. The first
// bytes choose the number of plain bytes. What decodes must encode to something that decodes to the
// same; the input as plain bytes must come back as well.
#include "transport/record/plane_codec.hpp"

#include <algorithm>
#include <vector>

#include "base/pieces.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace {

using namespace cairn;

void must_come_back(PlaneCodec& codec, std::span<const std::byte> plain, std::uint32_t width) {
  const iovec piece = piece_of(plain.data(), plain.size());
  const auto encoded = codec.encode({&piece, 1}, width);
  if (!encoded) return;
  fuzz::must(encoded->size_bytes < plain.size(), "encoded bytes are more than plain ones");
  std::vector<std::byte> back(plain.size());
  const iovec into{back.data(), back.size()};
  fuzz::must(codec.decode(encoded->span(), {&into, 1}), "encoded bytes do not decode");
  fuzz::must(std::ranges::equal(back, plain), "a block comes back with other bytes");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static PlaneCodec codec;  // its contexts take longer to make than most inputs to decode
  fuzz::Input input(data, size);
  const std::uint32_t width = 1u << (input.byte() % 4);
  std::size_t plain_bytes = input.byte();
  plain_bytes = plain_bytes * 256 + input.byte();
  // A fifth of the inputs have several chunks.
  if (plain_bytes % 5 == 0) plain_bytes = plain_bytes * 17 % (3 * kPlaneBytes);

  std::vector<std::byte> plain(plain_bytes);
  const std::size_t first = plain_bytes / 3;
  const std::vector<iovec> into{{plain.data(), first}, {plain.data() + first, plain_bytes - first}};
  if (codec.decode(input.rest(), into)) must_come_back(codec, plain, width);

  std::vector<std::byte> repeated;
  while (repeated.size() < plain_bytes && !input.rest().empty()) {
    const auto part =
        input.rest().first(std::min(input.rest().size(), plain_bytes - repeated.size()));
    repeated.insert(repeated.end(), part.begin(), part.end());
  }
  must_come_back(codec, repeated, width);
  return 0;
}
