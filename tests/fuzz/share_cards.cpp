// What the other ranks of a group say of a call and of its keys: anything may arrive where this
// rank expects their cards. Its own come first and are right.
#include "blockmgr/share/share_cards.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/fuzz/fuzz.hpp"

namespace {

using namespace cairn;

// As many as are there, and zeros where the input ends.
template <class Card>
void fill(std::vector<Card>& cards, std::size_t from, std::span<const std::byte>& input) {
  const auto room = std::as_writable_bytes(std::span(cards).subspan(from));
  const auto taken = input.first(std::min(room.size(), input.size()));
  if (!taken.empty()) std::memcpy(room.data(), taken.data(), taken.size());
  input = input.subspan(taken.size());
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
  std::vector<CallCard> calls(members);
  calls[0].key_count = keys;
  fill(calls, 1, rest);
  static_cast<void>(check_calls(ranks, calls));

  std::vector<KeyCard> cards(members * keys);
  for (std::size_t key = 0; key < keys; ++key) {
    cards[key].key[0] = std::byte{static_cast<unsigned char>(key)};
    cards[key].key_size = 1;
  }
  fill(cards, keys, rest);
  std::optional<std::size_t> owner;
  if (owner_byte % 2 == 0) owner = owner_byte / 2 % members;
  const SharePlan plan(cards, members, owner);
  if (!plan.check_keys(ranks)) return 0;
  for (std::size_t key = 0; key < keys; ++key) {
    const auto giver = plan.owner(key);
    fuzz::must(!giver || (*giver < members && (!owner || *giver == *owner)),
               "a block from who does not give it");
    fuzz::must(!plan.moves(key) || giver.has_value(), "a block from nobody");
    for (std::size_t member = 0; member < members; ++member) {
      fuzz::must(plan.card(member, key).key_view() == cards[key].key_view(),
                 "the block of another key");
      static_cast<void>(plan.card(member, key).parent_key());
    }
  }
  return 0;
}
