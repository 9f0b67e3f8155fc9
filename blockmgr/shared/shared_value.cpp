#include "blockmgr/shared/shared_value.hpp"

#include <bit>
#include <cstring>
#include <string>

#include "base/hash.hpp"

namespace cairn {
namespace {

static_assert(std::endian::native == std::endian::little, "headers are little-endian");

constexpr std::string_view kMagic = "CAIRNSV1";

struct Fields {
  std::array<char, 8> magic{};
  std::uint64_t fingerprint = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t checksum = 0;
  std::uint32_t epoch = 0;
  std::uint8_t key_bytes = 0;
  std::uint8_t parent_bytes = 0;
  std::uint16_t zero = 0;
  std::array<std::byte, kMaxKeyBytes> key{};
  std::array<std::byte, kMaxKeyBytes> parent{};
  std::uint64_t header_checksum = 0;
};
static_assert(sizeof(Fields) == kSharedHeaderBytes);

std::uint64_t checksum_of(const Fields& fields) {
  return hash_bytes(std::as_bytes(std::span(&fields, 1))
                        .first(kSharedHeaderBytes - sizeof(fields.header_checksum)),
                    0);
}

template <std::size_t N>
KeyView view_of(const std::array<std::byte, N>& bytes, std::uint8_t size) {
  return {bytes.data(), size};
}

}  // namespace

std::uint64_t fingerprint_of(const LayoutConfig& shape) {
  const std::string text = "cairn block 1: " + std::to_string(shape.num_layers) + " " +
                           std::to_string(shape.outer_dim) + " " + std::to_string(shape.page_size) +
                           " " + std::to_string(shape.inner_dim) + " " +
                           std::to_string(shape.dtype_width_bytes);
  return hash_bytes(std::as_bytes(std::span(text)), 0);
}

SharedHeader write_shared_header(std::uint64_t fingerprint, const SharedBlock& block) {
  Fields fields{.fingerprint = fingerprint,
                .size_bytes = block.size_bytes,
                .checksum = block.checksum,
                .epoch = block.epoch,
                .key_bytes = block.key.view().size};
  std::memcpy(fields.magic.data(), kMagic.data(), kMagic.size());
  std::memcpy(fields.key.data(), block.key.view().data, block.key.view().size);
  if (block.parent) {
    fields.parent_bytes = block.parent->view().size;
    std::memcpy(fields.parent.data(), block.parent->view().data, fields.parent_bytes);
  }
  fields.header_checksum = checksum_of(fields);
  return std::bit_cast<SharedHeader>(fields);
}

std::string_view to_string(WrongValue why) {
  constexpr std::array<std::string_view, kNumWrongValues> kWords = {"header", "shape", "key",
                                                                    "length", "checksum"};
  return kWords[static_cast<std::size_t>(why)];
}

SharedHeaderRead read_shared_header(const SharedHeader& header, const SharedExpectation& expected) {
  const auto fields = std::bit_cast<Fields>(header);
  const auto wrong = [](WrongValue why) { return SharedHeaderRead{.wrong = why}; };
  if (std::memcmp(fields.magic.data(), kMagic.data(), kMagic.size()) != 0 ||
      fields.header_checksum != checksum_of(fields) || fields.key_bytes < 1 ||
      fields.key_bytes > kMaxKeyBytes || fields.parent_bytes > kMaxKeyBytes) {
    return wrong(WrongValue::header);
  }
  if (fields.fingerprint != expected.fingerprint) return wrong(WrongValue::shape);
  if (fields.size_bytes != expected.size_bytes) return wrong(WrongValue::length);
  const KeyView key = view_of(fields.key, fields.key_bytes);
  if (!(key == expected.key)) return wrong(WrongValue::key);
  SharedBlock block{.key = BlockKey(key),
                    .epoch = fields.epoch,
                    .size_bytes = fields.size_bytes,
                    .checksum = fields.checksum};
  if (fields.parent_bytes > 0) {
    block.parent = BlockKey(view_of(fields.parent, fields.parent_bytes));
  }
  return {.block = std::move(block)};
}

}  // namespace cairn
