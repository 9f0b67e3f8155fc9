// The JSON before the blocks of a bulk write.
#include "server/routes/write_header.hpp"

#include "tests/fuzz/fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kMaxKeys = 8;
  static const cairn::CacheConfig config{.name = "c", .shape = {}, .tiers = {}};
  const auto header = cairn::routes::read_write_header(cairn::fuzz::Input(data, size).rest(),
                                                       kMaxKeys, cairn::KvGroupNames(config));
  if (!header) return 0;
  cairn::fuzz::must(header->keys.size() <= kMaxKeys, "more keys than allowed");
  cairn::fuzz::must(header->parents.size() == header->keys.size(), "a key without its parent");
  return 0;
}
