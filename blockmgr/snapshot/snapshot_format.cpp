#include "blockmgr/snapshot/snapshot_format.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string_view>

#include "base/hash.hpp"
#include "blockmgr/index/slot_pool.hpp"
#include "transport/record/block_record.hpp"

namespace cairn {
namespace {

static_assert(std::endian::native == std::endian::little, "the numbers are written as they lie");

constexpr std::string_view kHeaderMagic = "CAIRNSNP";
constexpr std::string_view kFooterMagic = "CAIRNEND";
constexpr std::uint32_t kZstdFlag = 1;
constexpr std::uint32_t kKvGroupsFlag = 2;
constexpr std::size_t kChecksumBytes = 8;

class Encoder {
 public:
  explicit Encoder(SnapshotBytes& out) : out_(out) {}
  template <class T>
  void number(T value) {
    bytes(std::as_bytes(std::span(&value, 1)));
  }
  // g++ 12 falsely reports an overflow in the range insert of a new vector at -O3.
  void bytes(std::span<const std::byte> data) {
    const std::size_t end = out_.size();
    out_.resize(end + data.size());
    std::copy(data.begin(), data.end(), out_.begin() + static_cast<std::ptrdiff_t>(end));
  }
  void text(std::string_view data) { bytes(std::as_bytes(std::span(data))); }
  void sized(std::string_view data) {
    number(static_cast<std::uint32_t>(data.size()));
    text(data);
  }

 private:
  SnapshotBytes& out_;
};

// Past the end it reads zeros and remembers the failure.
class Decoder {
 public:
  explicit Decoder(std::span<const std::byte> in) : left_(in) {}
  template <class T>
  T number() {
    T value{};
    const auto data = bytes(sizeof(T));
    if (!data.empty()) std::memcpy(&value, data.data(), sizeof(T));
    return value;
  }
  std::span<const std::byte> bytes(std::size_t size) {
    if (size > left_.size()) {
      failed_ = true;
      left_ = {};
      return {};
    }
    const auto data = left_.first(size);
    left_ = left_.subspan(size);
    return data;
  }
  std::string text(std::size_t size) {
    const auto data = bytes(size);
    return {reinterpret_cast<const char*>(data.data()), data.size()};
  }
  std::string sized() { return text(number<std::uint32_t>()); }
  void refuse_unless(bool fine) { failed_ = failed_ || !fine; }
  bool failed() const { return failed_; }
  std::span<const std::byte> left() const { return left_; }

 private:
  std::span<const std::byte> left_;
  bool failed_ = false;
};

// Returns the bytes before the trailing checksum; nullopt if the checksum is wrong.
std::optional<std::span<const std::byte>> checked(std::span<const std::byte> bytes) {
  if (bytes.size() < kChecksumBytes) return std::nullopt;
  const auto body = bytes.first(bytes.size() - kChecksumBytes);
  std::uint64_t expected = 0;
  std::memcpy(&expected, bytes.data() + body.size(), kChecksumBytes);
  if (hash_bytes(body, 0) != expected) return std::nullopt;
  return body;
}

struct SnapshotPlace {
  std::int64_t last_use_unix_ms = 0;
  std::uint64_t stored_bytes = 0;
  std::uint64_t stored_checksum = 0;
  std::uint8_t tiers = 0;
  std::array<std::uint8_t, 7> zero = {};
};

// One byte for both. Files from before there was another order than lru read as lru.
constexpr unsigned kEvictionShift = 4;
constexpr unsigned kRemovedLrfu = 2;  // an eviction order until 0.3; read as the default

void put(Encoder& out, const LayoutConfig& shape) {
  for (std::uint64_t size : {shape.num_layers, shape.outer_dim, shape.page_size, shape.inner_dim,
                             shape.dtype_width_bytes, shape.alignment}) {
    out.number(size);
  }
}

LayoutConfig take_shape(Decoder& in) {
  LayoutConfig shape;
  for (std::uint64_t* size : {&shape.num_layers, &shape.outer_dim, &shape.page_size,
                              &shape.inner_dim, &shape.dtype_width_bytes, &shape.alignment}) {
    *size = in.number<std::uint64_t>();
  }
  // The rules for shapes limit every product of the sizes.
  LayoutConfig one = shape;
  one.num_blocks = 1;
  in.refuse_unless(validate(one).has_value());
  return shape;
}

void put_kv_groups(Encoder& out, const CacheConfig& config) {
  out.number(config.block_tokens);
  out.number(static_cast<std::uint8_t>(config.kv_groups.size()));
  for (const KvGroupConfig& group : config.kv_groups) {
    out.sized(group.name);
    out.number(static_cast<std::uint8_t>(group.kind));
    out.number(group.window_tokens);
    put(out, group.shape);
  }
}

void take_kv_groups(Decoder& in, CacheConfig& config) {
  config.block_tokens = in.number<std::uint32_t>();
  const auto count = in.number<std::uint8_t>();
  in.refuse_unless(config.block_tokens > 0 && count >= 1 && count <= kMaxKvGroups);
  for (std::size_t i = 0; i < count && !in.failed(); ++i) {
    KvGroupConfig& group = config.kv_groups.emplace_back();
    group.name = in.sized();
    const auto kind = in.number<std::uint8_t>();
    in.refuse_unless(kind <= static_cast<std::uint8_t>(KvGroupKind::state));
    group.kind = static_cast<KvGroupKind>(kind);
    group.window_tokens = in.number<std::uint32_t>();
    group.shape = take_shape(in);
  }
}

void put(Encoder& out, const CacheConfig& config) {
  out.sized(config.name);
  put(out, config.shape);
  out.number(static_cast<std::uint8_t>(static_cast<unsigned>(config.offload) |
                                       static_cast<unsigned>(config.eviction) << kEvictionShift));
  out.number(config.default_lease_ms);
  for (const auto& tier : config.tiers) {
    out.number(static_cast<std::uint8_t>(tier.has_value()));
    if (!tier) continue;
    out.number(tier->num_blocks);
    out.number(static_cast<std::uint8_t>(tier->layout));
    out.number(static_cast<std::uint8_t>(tier->block_dim));
    out.number(static_cast<std::int32_t>(tier->device_id));
    out.number(static_cast<std::uint8_t>(tier->numa_aware));
    // The default path is stored as empty: a cache made from this under another name has its own.
    out.sized(tier->path == config.name ? std::string_view() : tier->path);
  }
  if (!config.kv_groups.empty()) put_kv_groups(out, config);
}

CacheConfig take_config(Decoder& in, bool has_kv_groups) {
  CacheConfig config;
  config.name = in.sized();
  config.shape = take_shape(in);
  const auto policies = in.number<std::uint8_t>();
  const auto offload = policies & ((1U << kEvictionShift) - 1);
  const auto eviction = static_cast<unsigned>(policies) >> kEvictionShift;
  in.refuse_unless(offload <= static_cast<unsigned>(OffloadMode::never) &&
                   eviction <= kRemovedLrfu);
  config.offload = static_cast<OffloadMode>(offload);
  config.eviction =
      eviction == kRemovedLrfu ? kDefaultEviction : static_cast<EvictionKind>(eviction);
  config.default_lease_ms = in.number<std::uint32_t>();
  for (auto& tier : config.tiers) {
    if (in.number<std::uint8_t>() == 0) continue;
    tier.emplace();
    tier->num_blocks = in.number<std::uint32_t>();
    const auto layout = in.number<std::uint8_t>();
    const auto block_dim = in.number<std::uint8_t>();
    in.refuse_unless(layout <= 1 && block_dim <= 1);
    tier->layout = static_cast<LayoutKind>(layout);
    tier->block_dim = static_cast<BlockDim>(block_dim);
    tier->device_id = in.number<std::int32_t>();
    tier->numa_aware = in.number<std::uint8_t>() != 0;
    tier->path = in.sized();
  }
  if (has_kv_groups) take_kv_groups(in, config);
  return config;
}

}  // namespace

Error broken_snapshot(std::string why) { return {ErrorCode::broken_snapshot, std::move(why)}; }

SnapshotBytes encode(const SnapshotHeader& header) {
  SnapshotBytes bytes;
  Encoder out(bytes);
  out.text(kHeaderMagic);
  out.number(kSnapshotVersion);
  out.number(std::uint32_t{0});  // the length, set below
  out.number((header.compressed ? kZstdFlag : 0U) |
             (header.config.kv_groups.empty() ? 0U : kKvGroupsFlag));
  out.number(std::uint32_t{0});
  out.number(header.created_unix_ms);
  put(out, header.config);
  const auto length = static_cast<std::uint32_t>(bytes.size() + kChecksumBytes);
  std::memcpy(bytes.data() + kSnapshotPreludeBytes - sizeof(length), &length, sizeof(length));
  out.number(hash_bytes(bytes, 0));
  return bytes;
}

void append(SnapshotBytes& index, const SnapshotRecord& record) {
  const BlockRecordView block{
      .key = record.key.view().as_text(),
      .parent = record.parent ? record.parent->view().as_text() : std::string_view(),
      .metadata = record.metadata,
      .data_bytes = record.block_bytes,
      .data_checksum = record.checksum,
      .expires_at_unix_ms = record.expires_at_unix_ms,
      .epoch = record.epoch,
      .priority = record.priority,
      .kv_group = record.key.kv_group()};
  const SnapshotPlace place{.last_use_unix_ms = record.last_use_unix_ms,
                            .stored_bytes = record.stored_bytes,
                            .stored_checksum = record.stored_checksum,
                            .tiers = record.tiers};
  const std::size_t at = index.size();
  index.resize(at + encoded_bytes(block, sizeof(place)));
  encode_record(block, place, std::span(index).subspan(at));
}

SnapshotBytes encode(const SnapshotFooter& footer) {
  SnapshotBytes bytes;
  Encoder out(bytes);
  out.text(kFooterMagic);
  for (std::uint64_t number : {footer.blocks, footer.index_offset, footer.index_bytes,
                               footer.index_checksum, footer.header_checksum, footer.file_bytes}) {
    out.number(number);
  }
  out.number(hash_bytes(bytes, 0));
  return bytes;
}

Result<std::uint32_t> decode_header_length(std::span<const std::byte> prelude) {
  Decoder in(prelude);
  if (in.text(kHeaderMagic.size()) != kHeaderMagic) return broken_snapshot("it is not a snapshot");
  const auto version = in.number<std::uint32_t>();
  if (version != kSnapshotVersion) {
    return broken_snapshot("it is of version " + std::to_string(version) + "; this program reads " +
                           std::to_string(kSnapshotVersion));
  }
  const auto length = in.number<std::uint32_t>();
  if (in.failed() || length < kSnapshotPreludeBytes + kChecksumBytes ||
      length > kMaxSnapshotHeaderBytes) {
    return broken_snapshot("its header is " + std::to_string(length) + " bytes long");
  }
  return length;
}

Result<SnapshotHeader> decode_header(std::span<const std::byte> bytes) {
  const auto body = checked(bytes);
  if (!body) return broken_snapshot("its header's checksum is wrong");
  Decoder in(*body);
  in.bytes(kSnapshotPreludeBytes);
  const auto flags = in.number<std::uint32_t>();
  in.refuse_unless((flags & ~(kZstdFlag | kKvGroupsFlag)) == 0 && in.number<std::uint32_t>() == 0);
  SnapshotHeader header;
  header.compressed = (flags & kZstdFlag) != 0;
  header.created_unix_ms = in.number<std::int64_t>();
  header.config = take_config(in, (flags & kKvGroupsFlag) != 0);
  if (in.failed() || !in.left().empty()) return broken_snapshot("its header cannot be read");
  return header;
}

Result<SnapshotFooter> decode_footer(std::span<const std::byte> bytes) {
  const auto body = checked(bytes);
  if (!body) return broken_snapshot("it is cut off, or its footer's checksum is wrong");
  Decoder in(*body);
  if (in.text(kFooterMagic.size()) != kFooterMagic) return broken_snapshot("it has no footer");
  SnapshotFooter footer;
  for (std::uint64_t* number :
       {&footer.blocks, &footer.index_offset, &footer.index_bytes, &footer.index_checksum,
        &footer.header_checksum, &footer.file_bytes}) {
    *number = in.number<std::uint64_t>();
  }
  if (in.failed() || !in.left().empty()) return broken_snapshot("its footer cannot be read");
  return footer;
}

Result<SnapshotRecord> SnapshotIndexCursor::next() {
  const auto read = decode_record<SnapshotPlace>(left_);
  if (!read) return broken_snapshot("a record of its index cannot be read");
  const auto& [block, place, size_bytes] = *read;
  const bool fits = !block.key.empty() && block.priority <= kMaxPriority && place.tiers >= 1 &&
                    place.tiers < 1U << kNumTiers && place.zero == decltype(place.zero){};
  if (!fits) return broken_snapshot("a record of its index is invalid");
  left_ = left_.subspan(size_bytes);
  SnapshotRecord record{.key = BlockKey(KeyView::of_text(block.key, block.kv_group)),
                        .metadata = std::string(block.metadata),
                        .epoch = block.epoch,
                        .priority = block.priority,
                        .tiers = place.tiers,
                        .last_use_unix_ms = place.last_use_unix_ms,
                        .expires_at_unix_ms = block.expires_at_unix_ms,
                        .stored_bytes = place.stored_bytes,
                        .stored_checksum = place.stored_checksum,
                        .block_bytes = block.data_bytes,
                        .checksum = block.data_checksum};
  if (!block.parent.empty()) {
    record.parent = BlockKey(KeyView::of_text(block.parent, block.kv_group));
  }
  return record;
}

}  // namespace cairn
