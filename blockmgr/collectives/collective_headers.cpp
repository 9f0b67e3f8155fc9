#include "blockmgr/collectives/collective_headers.hpp"

#include <algorithm>
#include <string>

#include "base/assert.hpp"
#include "base/hash.hpp"

namespace cairn {
namespace {

std::string describe(std::uint32_t rank, const CallHeader& header) {
  std::string text = "rank " + std::to_string(rank) + ": ";
  text += header.kind < kNumCollectiveKinds ? to_string(static_cast<CollectiveKind>(header.kind))
                                            : "an unknown call";
  if (header.kind == static_cast<std::uint32_t>(CollectiveKind::all_reduce)) {
    text += header.other < kNumReductions
                ? " (" + std::string(to_string(static_cast<Reduction>(header.other))) + ")"
                : " (unknown)";
    text += " of " + std::to_string(header.key_count);
    text += header.data_type < kNumDataTypes
                ? " " + std::string(to_string(static_cast<DataType>(header.data_type)))
                : " unknown";
    return text + " values";
  }
  text += " " + std::to_string(header.other) + " of " + std::to_string(header.key_count) +
          " keys, blocks of";
  for (std::uint64_t extent : header.shape) text += " " + std::to_string(extent);
  return text;
}

std::string name_version(std::uint32_t rank, const CallHeader& header) {
  return "rank " + std::to_string(rank) + " is of version " + std::to_string(header.version);
}

bool go_together(const CallHeader& a, const CallHeader& b) {
  if (a.key_count != b.key_count || a.shape != b.shape || a.data_type != b.data_type) return false;
  const auto send = static_cast<std::uint32_t>(CollectiveKind::send);
  const auto recv = static_cast<std::uint32_t>(CollectiveKind::recv);
  if (a.kind == send || a.kind == recv) return a.kind + b.kind == send + recv && a.kind != b.kind;
  return a.kind == b.kind && a.other == b.other;
}

}  // namespace

CallHeader CallHeader::of(const CollectiveRequest& request) {
  if (request.kind == CollectiveKind::all_reduce) {
    return {.kind = static_cast<std::uint32_t>(request.kind),
            .other = static_cast<std::uint32_t>(request.reduction),
            .data_type = static_cast<std::uint32_t>(request.values.type()),
            .key_count = request.values.count()};
  }
  const LayoutConfig& shape = request.cache->config().shape;
  return {.kind = static_cast<std::uint32_t>(request.kind),
          .other = request.other,
          .key_count = request.keys.size(),
          .shape = {shape.num_layers, shape.outer_dim, shape.page_size, shape.inner_dim,
                    shape.dtype_width_bytes}};
}

Result<> check_calls(const Members& members, std::span<const CallHeader> headers) {
  for (std::size_t i = 1; i < headers.size(); ++i) {
    if (headers[0].version != headers[i].version) {
      return Error{ErrorCode::state_conflict, "all ranks of a group need one version of Cairn: " +
                                                  name_version(members[0], headers[0]) + "; " +
                                                  name_version(members[i], headers[i])};
    }
    if (!go_together(headers[0], headers[i])) {
      return Error{ErrorCode::state_conflict,
                   "the ranks' calls do not match: " + describe(members[0], headers[0]) + "; " +
                       describe(members[i], headers[i])};
    }
  }
  return {};
}

KeyMessage encode(const KeyHeader& header) {
  KeyMessage message;
  encode_record({.key = header.key.view().as_text(),
                 .parent = header.parent ? header.parent->view().as_text() : std::string_view()},
                header.holding, message);
  return message;
}

Result<std::vector<KeyHeader>> decode(const Members& members,
                                      std::span<const KeyMessage> messages) {
  std::vector<KeyHeader> headers;
  headers.reserve(messages.size());
  const std::size_t batch = messages.size() / members.size();
  for (const KeyMessage& message : messages) {
    const auto record = decode_only_record<KeyHeader::Holding>(message);
    if (!record || record->block.key.empty() || record->place > KeyHeader::Holding::wanted) {
      return Error{ErrorCode::checksum_mismatch,
                   "a key message of rank " + std::to_string(members[headers.size() / batch]) +
                       " arrived damaged"};
    }
    KeyHeader& header = headers.emplace_back(
        KeyHeader{.key = BlockKey(KeyView::of_text(record->block.key)), .holding = record->place});
    if (!record->block.parent.empty())
      header.parent = BlockKey(KeyView::of_text(record->block.parent));
  }
  return headers;
}

CollectivePlan::CollectivePlan(std::span<const KeyHeader> headers, std::size_t members,
                               std::optional<std::size_t> owner)
    : headers_(headers), members_(members), owners_(headers.size() / members) {
  for (std::size_t key = 0; key < owners_.size(); ++key) {
    for (std::size_t member = 0; member < members && !owners_[key]; ++member) {
      const bool may_give = !owner || member == *owner;
      if (may_give && header(member, key).holding == KeyHeader::Holding::held)
        owners_[key] = member;
    }
  }
}

Result<> CollectivePlan::check_keys(const Members& members) const {
  for (std::size_t member = 0; member < members_; ++member) {
    for (std::size_t key = 0; key < owners_.size(); ++key) {
      if (!(header(member, key).key == header(0, key).key)) {
        return Error{ErrorCode::state_conflict, "ranks " + std::to_string(members[0]) + " and " +
                                                    std::to_string(members[member]) +
                                                    " do not name the same keys"};
      }
    }
  }
  return {};
}

bool CollectivePlan::wants(std::size_t member, std::size_t key) const {
  return header(member, key).holding == KeyHeader::Holding::wanted;
}

bool CollectivePlan::moves(std::size_t key) const {
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
