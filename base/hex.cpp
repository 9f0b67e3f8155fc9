#include "base/hex.hpp"

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

namespace cairn {
namespace {

constexpr std::uint8_t kNotHex = 0xFF;

constexpr std::array<std::uint8_t, 256> make_values() {
  std::array<std::uint8_t, 256> values{};
  values.fill(kNotHex);
  for (std::uint8_t i = 0; i < 10; ++i) values[static_cast<std::size_t>('0' + i)] = i;
  for (std::uint8_t i = 0; i < 6; ++i) {
    values[static_cast<std::size_t>('a' + i)] = static_cast<std::uint8_t>(10 + i);
    values[static_cast<std::size_t>('A' + i)] = static_cast<std::uint8_t>(10 + i);
  }
  return values;
}

constexpr std::array<char, 512> make_pairs() {
  constexpr std::string_view digits = "0123456789abcdef";
  std::array<char, 512> pairs{};
  for (std::size_t byte = 0; byte < 256; ++byte) {
    pairs[2 * byte] = digits[byte >> 4];
    pairs[2 * byte + 1] = digits[byte & 15];
  }
  return pairs;
}

constexpr auto kValues = make_values();
constexpr auto kPairs = make_pairs();

// Every request reads and writes keys in hex, so four bytes (eight digits) are converted at once in
// a 64-bit word: three times as fast as one digit at a time. The first byte is the lowest lane.
static_assert(std::endian::native == std::endian::little, "digits would change places");
constexpr std::size_t kWordBytes = 4;
constexpr std::uint64_t kOnes = 0x0101010101010101;
constexpr std::uint64_t kHighBits = 0x8080808080808080;

std::uint64_t digits_of(std::uint32_t bytes) {
  std::uint64_t spread = bytes;
  spread = (spread | spread << 16) & 0x0000FFFF0000FFFF;
  spread = (spread | spread << 8) & 0x00FF00FF00FF00FF;
  const std::uint64_t nibbles = (spread >> 4 | spread << 8) & (0x0F * kOnes);
  const std::uint64_t is_letter = (nibbles + 6 * kOnes) >> 4 & kOnes;
  return nibbles + '0' * kOnes + is_letter * ('a' - '0' - 10);
}

// Converts eight digits to bytes; sets `bad` to non-zero if one is not a hex digit.
std::uint32_t bytes_of(std::uint64_t digits, std::uint64_t& bad) {
  // No lane carries into the next: all are below 0x80, or the word is bad anyway.
  const std::uint64_t high = digits & kHighBits;
  const std::uint64_t low = digits & ~kHighBits;
  const std::uint64_t from_zero = low ^ ('0' * kOnes);                   // 0 to 9 for 0-9
  const std::uint64_t from_a = (low | (0x20 * kOnes)) ^ (0x60 * kOnes);  // 1 to 6 for a-f and A-F
  const std::uint64_t no_number = from_zero + (0x80 - 10) * kOnes;
  const std::uint64_t no_letter = ~(from_a + 0x7F * kOnes) | (from_a + (0x80 - 7) * kOnes);
  bad |= high | (no_number & no_letter & kHighBits);
  const std::uint64_t values = (low & (0x0F * kOnes)) + 9 * (low >> 6 & kOnes);
  std::uint64_t packed = (values << 4 | values >> 8) & 0x00FF00FF00FF00FF;
  packed = (packed | packed >> 8) & 0x0000FFFF0000FFFF;
  return static_cast<std::uint32_t>(packed | packed >> 16);
}

}  // namespace

void write_hex(std::span<const std::byte> bytes, char* out) {
  while (bytes.size() >= kWordBytes) {
    std::uint32_t word = 0;
    std::memcpy(&word, bytes.data(), kWordBytes);
    const std::uint64_t digits = digits_of(word);
    std::memcpy(out, &digits, 2 * kWordBytes);
    out += 2 * kWordBytes;
    bytes = bytes.subspan(kWordBytes);
  }
  for (std::byte byte : bytes) {
    const auto index = 2 * std::to_integer<std::size_t>(byte);
    *out++ = kPairs[index];
    *out++ = kPairs[index + 1];
  }
}

void append_hex(std::string& out, std::span<const std::byte> bytes) {
  const std::size_t at = out.size();
  out.resize(at + 2 * bytes.size());
  write_hex(bytes, out.data() + at);
}

std::string to_hex(std::span<const std::byte> bytes) {
  std::string out;
  append_hex(out, bytes);
  return out;
}

bool from_hex(std::string_view hex, std::span<std::byte> out) {
  if (hex.size() != 2 * out.size()) return false;
  std::uint64_t bad = 0;
  const char* in = hex.data();
  while (out.size() >= kWordBytes) {
    std::uint64_t digits = 0;
    std::memcpy(&digits, in, 2 * kWordBytes);
    const std::uint32_t word = bytes_of(digits, bad);
    std::memcpy(out.data(), &word, kWordBytes);
    in += 2 * kWordBytes;
    out = out.subspan(kWordBytes);
  }
  for (std::byte& byte : out) {
    const unsigned high = kValues[static_cast<unsigned char>(*in++)];
    const unsigned low = kValues[static_cast<unsigned char>(*in++)];
    bad |= (high | low) & 0xF0U;
    byte = static_cast<std::byte>((high << 4) | (low & 15));
  }
  return bad == 0;
}

}  // namespace cairn
