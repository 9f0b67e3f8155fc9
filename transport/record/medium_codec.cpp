#include "transport/record/medium_codec.hpp"

#include <bit>
#include <chrono>
#include <random>
#include <vector>

#include "base/assert.hpp"
#include "base/pieces.hpp"

namespace cairn {
namespace {

// Numbers in bf16 from -2 to 2, with the mantissas of noise. Their exponents are distributed like
// those of keys and values.
std::vector<std::byte> sample(std::size_t size_bytes) {
  std::minstd_rand random;  // the same on each start
  std::vector<std::byte> bytes(size_bytes);
  for (std::size_t at = 0; at + 1 < size_bytes; at += 2) {
    const float number = 4 * static_cast<float>(random() % 65'536) / 65'536 - 2;
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(number);
    bytes[at] = static_cast<std::byte>(bits >> 16);
    bytes[at + 1] = static_cast<std::byte>(bits >> 24);
  }
  return bytes;
}

}  // namespace

MediumCodec::MediumCodec(const Options& options)
    : reading(options.clock), options_(options), decoding_(options.clock) {
  if (is_on()) measure();
}

std::optional<PlaneCodec::Encoded> MediumCodec::encode(std::span<const iovec> plain,
                                                       std::uint32_t element_bytes) {
  if (!is_on()) return std::nullopt;
  if (is_slow()) {
    ++slow_blocks_;
    return std::nullopt;
  }
  auto encoded = codec_.encode(plain, element_bytes);
  if (!encoded) {
    ++noise_blocks_;
    return std::nullopt;
  }
  ++encoded_blocks_;
  plain_bytes_ += total_bytes(plain);
  encoded_bytes_ += encoded->size_bytes;
  return encoded;
}

bool MediumCodec::decode(std::span<const std::byte> encoded, std::span<const iovec> plain) {
  decoding_.begin();
  const bool is_whole = codec_.decode(encoded, plain);
  decoding_.end(is_whole ? total_bytes(plain) : 0);
  if (is_whole) ++decoded_blocks_;
  return is_whole;
}

bool MediumCodec::decode_in_place(std::uint64_t encoded_bytes, std::span<const iovec> plain) {
  if (encoded_bytes >= total_bytes(plain)) return false;
  const auto encoded = std::make_unique_for_overwrite<std::byte[]>(encoded_bytes);
  copy_first(plain, {encoded.get(), encoded_bytes});
  return decode({encoded.get(), encoded_bytes}, plain);
}

MediumCodec::Stats MediumCodec::stats() const {
  return {.codec = options_.codec,
          .encoded_blocks = encoded_blocks_,
          .plain_bytes = plain_bytes_,
          .encoded_bytes = encoded_bytes_,
          .noise_blocks = noise_blocks_,
          .slow_blocks = slow_blocks_,
          .decoded_blocks = decoded_blocks_,
          .decoded_bytes_per_s = decoding_.bytes_per_s(),
          .read_bytes_per_s = reading.bytes_per_s()};
}

bool MediumCodec::is_slow() const {
  const double decodes = decoding_.bytes_per_s();
  return decodes > 0 && decodes < reading.bytes_per_s();
}

void MediumCodec::measure() {
  std::vector<std::byte> plain = sample(1u << 20);
  const iovec piece{plain.data(), plain.size()};
  const auto encoded = codec_.encode({&piece, 1}, 2);
  if (!encoded) return;
  // The second time its memory is in the processor's caches, as it is while a server runs.
  TimePoint began{};
  for (int i = 0; i < 2; ++i) {
    began = options_.clock.now();
    CAIRN_ASSERT(codec_.decode(encoded->span(), {&piece, 1}),
                 "the codec cannot read its own bytes");
  }
  const std::chrono::duration<double> took = options_.clock.now() - began;
  if (took.count() > 0) decoding_.assume(static_cast<double>(plain.size()) / took.count());
}

}  // namespace cairn
