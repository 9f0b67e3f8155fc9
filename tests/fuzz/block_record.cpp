// The record of a block, as it is in files, in a shared store and in responses of other servers.
// The test corrects the checksum; otherwise the fields after it would never be read.
#include "transport/record/block_record.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/hash.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace {

using namespace cairn;

// Like the disk index's.
using Place = std::array<std::byte, 32>;

// The checksum covers only the record. The input gives the record's length.
void read(std::vector<std::byte> bytes, std::size_t record_bytes) {
  const std::uint64_t checksum =
      hash_bytes(std::span(bytes).first(record_bytes).subspan(sizeof(checksum)), 0);
  std::memcpy(bytes.data(), &checksum, sizeof(checksum));
  const auto record = decode_record<Place>(bytes);
  if (!record) return;
  const BlockRecordView& block = record->block;
  fuzz::must(record->size_bytes == record_bytes, "a record that is longer than what was hashed");
  fuzz::must(block.key.size() <= kMaxKeyBytes && block.parent.size() <= kMaxKeyBytes,
             "a key that is too long");
  fuzz::must(encoded_bytes(block, sizeof(Place)) == record_bytes,
             "a record that takes another size when it is written again");
  std::vector<std::byte> again(record_bytes);
  encode_record(block, record->place, again);
  fuzz::must(std::ranges::equal(again, std::span(bytes).first(record_bytes)),
             "a record that reads as another");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const std::size_t more_bytes = input.byte() % 16;
  const auto rest = input.rest();
  if (rest.size() < sizeof(std::uint64_t) + more_bytes) return 0;
  read({rest.begin(), rest.end()}, rest.size() - more_bytes);
  return 0;
}
