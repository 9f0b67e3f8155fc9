#include "blockmgr/share/share_cards.hpp"

#include <algorithm>
#include <string>

#include "base/assert.hpp"
#include "base/hash.hpp"

namespace cairn {
namespace {

std::string describe(std::uint32_t rank, const CallCard& card) {
  std::string text = "rank " + std::to_string(rank) + ": ";
  text +=
      card.kind < kNumShareKinds ? to_string(static_cast<ShareKind>(card.kind)) : "an unknown call";
  if (card.kind == static_cast<std::uint32_t>(ShareKind::all_reduce)) {
    text += card.other < kNumReductions
                ? " (" + std::string(to_string(static_cast<Reduction>(card.other))) + ")"
                : " (unknown)";
    return text + " of " + std::to_string(card.key_count) + " values";
  }
  text += " " + std::to_string(card.other) + " of " + std::to_string(card.key_count) +
          " keys, blocks of";
  for (std::uint64_t extent : card.shape) text += " " + std::to_string(extent);
  return text;
}

bool go_together(const CallCard& a, const CallCard& b) {
  if (a.version != b.version || a.key_count != b.key_count || a.shape != b.shape) return false;
  const auto send = static_cast<std::uint32_t>(ShareKind::send);
  const auto recv = static_cast<std::uint32_t>(ShareKind::recv);
  if (a.kind == send || a.kind == recv) return a.kind + b.kind == send + recv && a.kind != b.kind;
  return a.kind == b.kind && a.other == b.other;
}

}  // namespace

CallCard CallCard::of(const ShareRequest& request) {
  if (request.kind == ShareKind::all_reduce) {
    return {.kind = static_cast<std::uint32_t>(request.kind),
            .other = static_cast<std::uint32_t>(request.reduction),
            .key_count = request.values.size()};
  }
  const LayoutConfig& shape = request.cache->config().shape;
  return {.kind = static_cast<std::uint32_t>(request.kind),
          .other = request.other,
          .key_count = request.keys.size(),
          .shape = {shape.num_layers, shape.outer_dim, shape.page_size, shape.inner_dim,
                    shape.dtype_width_bytes}};
}

Result<> check_calls(const Members& members, std::span<const CallCard> cards) {
  for (std::size_t i = 1; i < cards.size(); ++i) {
    if (!go_together(cards[0], cards[i])) {
      return Error{ErrorCode::state_conflict,
                   "the ranks' calls do not go together: " + describe(members[0], cards[0]) + "; " +
                       describe(members[i], cards[i])};
    }
  }
  return {};
}

std::optional<BlockKey> KeyCard::parent_key() const {
  if (parent_size == 0 || parent_size > kMaxKeyBytes) return std::nullopt;
  return BlockKey(KeyView{parent.data(), parent_size});
}
void KeyCard::set_key(KeyView view) {
  std::copy_n(view.data, view.size, key.begin());
  key_size = view.size;
}
void KeyCard::set_parent(KeyView view) {
  std::copy_n(view.data, view.size, parent.begin());
  parent_size = view.size;
}

SharePlan::SharePlan(std::span<const KeyCard> cards, std::size_t members,
                     std::optional<std::size_t> owner)
    : cards_(cards), members_(members), owners_(cards.size() / members) {
  for (std::size_t key = 0; key < owners_.size(); ++key) {
    for (std::size_t member = 0; member < members && !owners_[key]; ++member) {
      const bool may_give = !owner || member == *owner;
      if (may_give && card(member, key).holding == KeyCard::Holding::held) owners_[key] = member;
    }
  }
}

Result<> SharePlan::check_keys(const Members& members) const {
  for (std::size_t member = 0; member < members_; ++member) {
    for (std::size_t key = 0; key < owners_.size(); ++key) {
      if (card(member, key).key_size > kMaxKeyBytes ||
          !(card(member, key).key_view() == card(0, key).key_view())) {
        return Error{ErrorCode::state_conflict, "ranks " + std::to_string(members[0]) + " and " +
                                                    std::to_string(members[member]) +
                                                    " do not name the same keys"};
      }
    }
  }
  return {};
}

bool SharePlan::wants(std::size_t member, std::size_t key) const {
  return card(member, key).holding == KeyCard::Holding::wanted;
}

bool SharePlan::moves(std::size_t key) const {
  if (!owners_[key]) return false;
  for (std::size_t member = 0; member < members_; ++member) {
    if (wants(member, key)) return true;
  }
  return false;
}

std::uint64_t block_checksum(std::span<const iovec> pieces, std::uint64_t piece_bytes) {
  std::uint64_t checksum = 0;
  for (const iovec& run : pieces) {
    CAIRN_ASSERT(run.iov_len % piece_bytes == 0, "the checksum would depend on the layout");
    const auto* bytes = static_cast<const std::byte*>(run.iov_base);
    for (std::size_t at = 0; at < run.iov_len; at += piece_bytes) {
      checksum = hash_bytes(std::span(bytes + at, piece_bytes), checksum);
    }
  }
  return checksum;
}

}  // namespace cairn
