#include "blockmgr/remote_tier/remote_value.hpp"

#include <string>

#include "base/hash.hpp"

namespace cairn {

std::uint64_t fingerprint_of(const CacheConfig& config, KvGroupNumber number) {
  const LayoutConfig& shape = config.shape_of(number);
  std::string text = "cairn block " + std::to_string(kBlockRecordVersion) + ": " +
                     std::to_string(shape.num_layers) + " " + std::to_string(shape.outer_dim) +
                     " " + std::to_string(shape.page_size) + " " + std::to_string(shape.inner_dim) +
                     " " + std::to_string(shape.dtype_width_bytes);
  // Groups may come in another order on another server, so the name counts.
  if (!config.kv_groups.empty()) {
    const KvGroupConfig& group = config.kv_groups[number];
    text.append(" ").append(group.name).append(" ").append(to_string(group.kind));
    text += " " + std::to_string(group.window_tokens) + " " + std::to_string(config.block_tokens);
  }
  return hash_bytes(std::as_bytes(std::span(text)), 0);
}

RemoteHeader write_remote_header(std::uint64_t fingerprint, const RemoteBlock& block) {
  RemoteHeader header;
  encode_record({.key = block.key.view().as_text(),
                 .parent = block.parent ? block.parent->view().as_text() : std::string_view(),
                 .data_bytes = block.size_bytes,
                 .data_checksum = block.checksum,
                 .epoch = block.epoch},
                fingerprint, header);
  return header;
}

std::string_view to_string(WrongValue why) {
  constexpr std::array<std::string_view, kNumWrongValues> kWords = {"header", "shape", "key",
                                                                    "length", "checksum"};
  return kWords[static_cast<std::size_t>(why)];
}

RemoteHeaderRead read_remote_header(const RemoteHeader& header, const RemoteExpectation& expected) {
  const auto wrong = [](WrongValue why) { return RemoteHeaderRead{.wrong = why}; };
  const auto record = decode_only_record<std::uint64_t>(header);
  if (!record || record->block.key.empty()) return wrong(WrongValue::header);
  const BlockRecordView& block = record->block;
  if (record->place != expected.fingerprint) return wrong(WrongValue::shape);
  if (block.data_bytes != expected.size_bytes) return wrong(WrongValue::length);
  if (block.key != expected.key.as_text()) return wrong(WrongValue::key);
  const KvGroupNumber group = expected.key.kv_group;
  RemoteHeaderRead read{.block = {.key = BlockKey(KeyView::of_text(block.key, group)),
                                  .epoch = block.epoch,
                                  .size_bytes = block.data_bytes,
                                  .checksum = block.data_checksum}};
  if (!block.parent.empty()) {
    read.block.parent = BlockKey(KeyView::of_text(block.parent, group));
  }
  return read;
}

}  // namespace cairn
