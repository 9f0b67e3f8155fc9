#include "server/codec/answers.hpp"

#include <array>
#include <bit>
#include <charconv>
#include <cstring>

#include "base/assert.hpp"
#include "base/hex.hpp"
#include "server/codec/ids.hpp"

namespace cairn {
namespace {

// The longest number, and the longest text of a block without its key.
constexpr std::size_t kMaxDigits = 20;
constexpr std::string_view kLongestBlock =
    ",{\"key\":\"\",\"tier\":\"device\",\"slot\":,\"generation\":}";
constexpr std::size_t kBlockTextBytes = kLongestBlock.size() + 2 * kMaxDigits;

template <class Number>
void append_number(std::string& out, Number value) {
  std::array<char, 24> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  out.append(digits.data(), end);
}

static_assert(std::endian::native == std::endian::little, "packed numbers are written as they lie");

struct PackedHead {
  std::uint32_t num_blocks = 0;
  std::uint32_t reserved = 0;
  std::array<std::byte, kLeaseBytes> lease = {};
  std::uint64_t expires_at_unix_ms = 0;
};
static_assert(sizeof(PackedHead) == 32);

struct PackedBlock {
  std::uint8_t tier = 0;
  KvGroupNumber kv_group = 0;
  std::uint16_t zero = 0;
  std::uint32_t slot = 0;
  std::uint64_t generation = 0;
};
static_assert(sizeof(PackedBlock) == 16);

void append_handle(std::string& out, const BlockHandle& handle, const KvGroupNames& groups) {
  out.append("\"tier\":\"").append(to_string(handle.tier)).append("\",\"slot\":");
  append_number(out, handle.slot);
  out.append(",\"generation\":");
  append_number(out, handle.generation);
  if (groups.are_shown()) {
    out.append(",\"kv_group\":\"").append(groups.name(handle.kv_group)).append("\"");
  }
}

void append_shards(std::string& out, const std::vector<std::uint32_t>& shards) {
  out.append(",\"shards\":[");
  for (std::size_t i = 0; i < shards.size(); ++i) {
    if (i > 0) out += ',';
    append_number(out, shards[i]);
  }
  out += ']';
}

void append_transfer(std::string& out, const std::optional<TransferId>& transfer) {
  out.append(",\"transfer\":");
  if (transfer) {
    out.append("\"").append(transfer_text(*transfer)).append("\"");
  } else {
    out.append("null");
  }
}

void append_lease_end(std::string& out, const std::optional<LeaseId>& lease,
                      std::int64_t expires_at_unix_ms) {
  if (lease) {
    out.append("\"lease\":\"");
    append_lease(out, *lease);
    out.append("\",\"expires_at_ms\":");
    append_number(out, expires_at_unix_ms);
  } else {
    out.append("\"lease\":null,\"expires_at_ms\":0");
  }
}

// Writes without bounds checks: the caller reserves enough memory.
class Cursor {
 public:
  explicit Cursor(char* at) : at_(at) {}
  void word(std::string_view text) {
    std::memcpy(at_, text.data(), text.size());
    at_ += text.size();
  }
  void hex(std::span<const std::byte> bytes) {
    write_hex(bytes, at_);
    at_ += 2 * bytes.size();
  }
  template <class Number>
  void number(Number value) {
    at_ = std::to_chars(at_, at_ + kMaxDigits, value).ptr;
  }
  char* at() const { return at_; }

 private:
  char* at_;
};

// After the lookup, this text is most of a match's cost. So memory is reserved once for all blocks.
void append_matched_blocks(std::string& out, std::span<const KeyView> keys,
                           std::span<const BlockHandle> blocks) {
  std::size_t most = 2;  // the closing brackets
  for (std::size_t i = 0; i < blocks.size(); ++i) most += kBlockTextBytes + 2u * keys[i].size;
  const std::size_t start = out.size();
  out.resize(start + most);
  Cursor cursor(out.data() + start);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const BlockHandle& block = blocks[i];
    cursor.word(i == 0 ? "{\"key\":\"" : ",{\"key\":\"");
    cursor.hex(keys[i].bytes());
    cursor.word("\",\"tier\":\"");
    cursor.word(to_string(block.tier));
    cursor.word("\",\"slot\":");
    cursor.number(block.slot);
    cursor.word(",\"generation\":");
    cursor.number(block.generation);
    cursor.word("}");
  }
  out.resize(static_cast<std::size_t>(cursor.at() - out.data()));
}

}  // namespace

std::string_view to_string(CommitStatus status) {
  switch (status) {
    case CommitStatus::committed:
      return "committed";
    case CommitStatus::duplicate:
      return "duplicate";
    case CommitStatus::pending:
      return "pending";
  }
  invariant_broken("CommitStatus", "a value outside the enumeration");
}

std::string match_text(const MatchAnswer& answer) {
  const auto& blocks = answer.result.blocks;
  std::string out = "{\"matched\":";
  append_number(out, blocks.size());
  out += ',';
  append_lease_end(out, answer.result.lease, answer.result.expires_at_unix_ms);
  if (answer.remote_blocks) {
    out.append(",\"shared_matched\":");
    append_number(out, *answer.remote_blocks);
  }
  if (answer.with_transfer) append_transfer(out, answer.transfer);
  out.append(",\"blocks\":[");
  append_matched_blocks(out, answer.keys, blocks);
  out.append("]}");
  return out;
}

std::string group_match_text(const GroupMatchAnswer& answer) {
  const GroupMatch& match = answer.match;
  std::string out;
  out.reserve(192 + match.blocks.size() * (kBlockTextBytes + 2 * kMaxKeyBytes));
  out.append("{\"matched\":");
  append_number(out, match.matched);
  out.append(",\"full_matched\":");
  append_number(out, match.full_matched);
  out += ',';
  append_lease_end(out, match.lease, match.expires_at_unix_ms);
  if (answer.remote_keys) {
    out.append(",\"shared_matched\":");
    append_number(out, *answer.remote_keys);
  }
  if (answer.with_transfer) append_transfer(out, answer.transfer);
  out.append(",\"blocks\":[");
  for (std::size_t i = 0; i < match.blocks.size(); ++i) {
    out.append(i == 0 ? "{\"key\":\"" : ",{\"key\":\"");
    append_hex(out, answer.keys[match.blocks[i].key].bytes());
    out.append("\",");
    append_handle(out, match.blocks[i].handle, answer.groups);
    out += '}';
  }
  out.append("]}");
  return out;
}

std::string allocation_text(const Allocation& allocation, const KvGroupNames& groups) {
  std::string out;
  out.reserve(160 + allocation.blocks.size() * kBlockTextBytes);
  out += '{';
  append_lease_end(out, allocation.lease, allocation.expires_at_unix_ms);
  out.append(",\"blocks\":[");
  for (std::size_t i = 0; i < allocation.blocks.size(); ++i) {
    out.append(i == 0 ? "{" : ",{");
    append_handle(out, allocation.blocks[i], groups);
    out += '}';
  }
  out.append("]}");
  return out;
}

std::string packed_blocks(const std::optional<LeaseId>& lease, std::int64_t expires_at_unix_ms,
                          std::span<const BlockHandle> blocks, std::uint64_t remote_blocks) {
  PackedHead head{.num_blocks = static_cast<std::uint32_t>(blocks.size() + remote_blocks)};
  if (lease) {
    head.lease = lease_bytes(*lease);
    head.expires_at_unix_ms = static_cast<std::uint64_t>(expires_at_unix_ms);
  }
  std::string out(sizeof head + head.num_blocks * sizeof(PackedBlock), '\0');
  std::memcpy(out.data(), &head, sizeof head);
  char* at = out.data() + sizeof head;
  for (const BlockHandle& block : blocks) {
    const PackedBlock packed{.tier = static_cast<std::uint8_t>(index_of(block.tier)),
                             .kv_group = block.kv_group,
                             .slot = block.slot,
                             .generation = block.generation};
    std::memcpy(at, &packed, sizeof packed);
    at += sizeof packed;
  }
  constexpr PackedBlock kShared{.tier = static_cast<std::uint8_t>(kNumTiers)};
  for (; remote_blocks > 0; --remote_blocks, at += sizeof kShared) {
    std::memcpy(at, &kShared, sizeof kShared);
  }
  return out;
}

std::string commit_text(const CommitAnswer& answer) {
  std::string out = "{\"blocks\":[";
  out.reserve(32 + answer.keys.size() * (kBlockTextBytes + 2 * kMaxKeyBytes));
  for (std::size_t i = 0; i < answer.keys.size(); ++i) {
    out.append(i == 0 ? "{\"key\":\"" : ",{\"key\":\"");
    append_hex(out, answer.keys[i].view().bytes());
    out.append("\",\"status\":\"").append(to_string(answer.statuses[i])).append("\"");
    if (answer.statuses[i] == CommitStatus::pending && answer.shards_of) {
      append_shards(out, answer.shards_of(answer.keys[i]));
    }
    out += '}';
  }
  out.append("]}");
  return out;
}

std::string stored_text(const StoredAnswer& answer, const KvGroupNames& groups) {
  std::string out = "{\"key\":\"";
  append_hex(out, answer.key.bytes());
  out.append("\",\"status\":\"").append(to_string(answer.status)).append("\"");
  if (!answer.shards.empty()) append_shards(out, answer.shards);
  if (answer.at) {
    out += ',';
    append_handle(out, *answer.at, groups);
  }
  return out += '}';
}

std::string released_text(std::uint64_t released) {
  return "{\"released\":" + std::to_string(released) + "}";
}

std::string renewed_text(const LeaseId& lease, std::int64_t expires_at_unix_ms) {
  std::string out = "{";
  append_lease_end(out, lease, expires_at_unix_ms);
  return out += '}';
}

}  // namespace cairn
