// The parts of a snapshot's file, which may come from another machine. Checksums are made right, or
// nothing would be read behind them.
#include <algorithm>
#include <cstring>

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

// What is read is what was there: written again, it is the same bytes.
void read_index(std::span<const std::byte> bytes) {
  SnapshotIndexCursor cursor(bytes);
  SnapshotBytes again;
  while (!cursor.at_end()) {
    const auto record = cursor.next();
    if (!record) return;
    append(again, *record);
    fuzz::must(
        again.size() <= bytes.size() && std::equal(again.begin(), again.end(), bytes.begin()),
        "a record that reads as another");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  switch (input.byte() % 3) {
    case 0:
      read_header(input.rest());
      break;
    case 1:
      static_cast<void>(decode_footer(with_checksum(input.rest())));
      break;
    default:
      read_index(input.rest());
  }
  return 0;
}
