// The headers that other ranks of a group send for a call and its keys: any bytes may arrive. This
// rank's own headers come first and are correct.
#include "blockmgr/collectives/collective_headers.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/fuzz/fuzz.hpp"

namespace {

using namespace cairn;

// Takes a value's bytes from the input, with zeros after its end.
template <class Value>
Value taken(std::span<const std::byte>& input) {
  Value value{};
  const auto room = std::as_writable_bytes(std::span(&value, 1));
  const auto bytes = input.first(std::min(room.size(), input.size()));
  if (!bytes.empty()) std::memcpy(room.data(), bytes.data(), bytes.size());
  input = input.subspan(bytes.size());
  return value;
}

BlockKey key_of(std::size_t number) {
  const std::byte byte{static_cast<unsigned char>(number)};
  return BlockKey(std::span(&byte, 1));
}

// A header of the requested key, one of any key, or any bytes.
KeyMessage message_of(const BlockKey& key, std::span<const std::byte>& input) {
  const auto how = taken<std::uint8_t>(input);
  if (how % 4 == 3) return taken<KeyMessage>(input);
  KeyHeader header{.key = key, .holding = static_cast<KeyHeader::Holding>(how / 16)};
  if (how % 4 == 1) header.parent = key_of(how);
  if (how % 4 == 2) header.key = key_of(how);
  return encode(header);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const std::size_t members = 2 + input.byte() % 3;
  const std::size_t keys = 1 + input.byte() % 4;
  const std::uint8_t owner_byte = input.byte();
  auto rest = input.rest();

  Members ranks(members);
  for (std::size_t i = 0; i < members; ++i) ranks[i] = static_cast<std::uint32_t>(i);
  std::vector<CallHeader> calls(members);
  calls[0].key_count = keys;
  for (std::size_t i = 1; i < members; ++i) calls[i] = taken<CallHeader>(rest);
  static_cast<void>(check_calls(ranks, calls));

  std::vector<KeyMessage> messages;
  for (std::size_t member = 0; member < members; ++member) {
    for (std::size_t key = 0; key < keys; ++key) {
      messages.push_back(member == 0 ? encode({.key = key_of(key)})
                                     : message_of(key_of(key), rest));
    }
  }
  const auto headers = decode(ranks, messages);
  if (!headers) return 0;
  fuzz::must(headers->size() == messages.size(), "a header for each message");
  std::optional<std::size_t> owner;
  if (owner_byte % 2 == 0) owner = owner_byte / 2 % members;
  const CollectivePlan plan(*headers, members, owner);
  if (!plan.check_keys(ranks)) return 0;
  for (std::size_t key = 0; key < keys; ++key) {
    const auto giver = plan.owner(key);
    fuzz::must(!giver || (*giver < members && (!owner || *giver == *owner)),
               "a block from a rank that does not send it");
    fuzz::must(!plan.moves(key) || giver.has_value(), "a block without a sender");
    for (std::size_t member = 0; member < members; ++member) {
      fuzz::must(plan.header(member, key).key == key_of(key), "the block of another key");
    }
  }
  return 0;
}
