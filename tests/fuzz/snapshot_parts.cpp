// The header and the footer of a snapshot's file, which may come from another machine. Its index
// consists of block records. The test corrects the checksum; otherwise the fields after it would
// never be read.
#include "base/hash.hpp"
#include "blockmgr/snapshot/snapshot_format.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace {

using namespace cairn;

SnapshotBytes with_checksum(std::span<const std::byte> bytes) {
  SnapshotBytes all(bytes.begin(), bytes.end());
  const std::uint64_t checksum = hash_bytes(all, 0);
  const auto* const end = reinterpret_cast<const std::byte*>(&checksum);
  all.insert(all.end(), end, end + sizeof(checksum));
  return all;
}

void read_header(std::span<const std::byte> bytes) {
  if (bytes.size() >= kSnapshotPreludeBytes) {
    static_cast<void>(decode_header_length(bytes.first(kSnapshotPreludeBytes)));
  }
  static_cast<void>(decode_header(with_checksum(bytes)));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  if (input.byte() % 2 == 0) {
    read_header(input.rest());
  } else {
    static_cast<void>(decode_footer(with_checksum(input.rest())));
  }
  return 0;
}
