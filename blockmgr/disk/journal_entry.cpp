#include "blockmgr/disk/journal_entry.hpp"

#include "base/assert.hpp"

namespace cairn {

std::size_t encoded_bytes(const JournalEntry& entry) {
  return encoded_bytes(entry.block, sizeof(JournalPlace));
}

void encode(const JournalEntry& entry, std::uint64_t seed, std::span<std::byte> out) {
  CAIRN_ASSERT(out.size() == encoded_bytes(entry), "the next entry would not be found");
  encode_record(entry.block, entry.place, out, seed);
}

std::optional<JournalEntry> JournalReader::next() {
  auto entry = decode_record<JournalPlace>(bytes_.subspan(at_), seed_);
  if (entry) at_ += entry->size_bytes;
  return entry;
}

}  // namespace cairn
