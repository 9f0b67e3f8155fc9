#include "replay/replay_blocks.hpp"

#include <algorithm>
#include <cstring>

#include "base/hash.hpp"
#include "replay/mix.hpp"

namespace cairn::replay {
namespace {

constexpr std::size_t kWordBytes = sizeof(std::uint64_t);
// Number of words compared before the result is checked: long enough for vectorisation, short
// enough that the second, bytewise look at a wrong run is in the cache.
constexpr std::size_t kRunWords = 512;
constexpr unsigned kShift = 29;

std::uint64_t scramble(std::uint64_t counter) { return counter ^ (counter >> kShift); }

// scramble()'s inverse: the upper bits are unchanged, and the lower ones follow from them.
std::uint64_t unscramble(std::uint64_t word) {
  word ^= (word >> kShift) ^ (word >> (2 * kShift));
  return word;
}

// Makes four numbers in bf16 of a word. As in keys and values, mantissas are noise and exponents
// are near each other: of eight exponents, those with fewer bits are more frequent, which is 2.4
// bits.
std::uint64_t as_numbers(std::uint64_t word) {
  constexpr std::uint64_t kMantissas = 0x00FF'00FF'00FF'00FF;
  constexpr std::uint64_t kExponents = 0x0700'0700'0700'0700;
  constexpr std::uint64_t kLeastExponents = 0x3800'3800'3800'3800;
  return (word & kMantissas) | (word & (word >> 3) & kExponents) | kLeastExponents;
}

// The word `at` of the block. The first one tells the seed.
std::uint64_t word_of(std::uint64_t seed, std::size_t at) {
  const std::uint64_t word = scramble(seed + at * kGolden);
  return at == 0 ? word : as_numbers(word);
}

std::uint64_t load(const std::byte* from) {
  std::uint64_t word = 0;
  std::memcpy(&word, from, kWordBytes);
  return word;
}

// The expected bytes of one word; `bytes` may hold fewer than eight (at a block's end).
void count_wrong(std::span<const std::byte> bytes, std::uint64_t expected, std::size_t offset,
                 Mismatch& found) {
  std::byte right[kWordBytes];
  std::memcpy(right, &expected, kWordBytes);
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == right[i]) continue;
    if (found.wrong_bytes == 0 && wrong == 0) found.first_offset_bytes = offset + i;
    ++wrong;
  }
  found.wrong_bytes += wrong;
}

struct Run {
  std::size_t first = 0;  // word
  std::size_t count = 0;
};
bool is_same(std::span<const std::byte> block, std::uint64_t seed, Run run) {
  std::uint64_t difference = 0;
  for (std::size_t i = run.first; i < run.first + run.count; ++i) {
    difference |= load(block.data() + i * kWordBytes) ^ word_of(seed, i);
  }
  return difference == 0;
}

Mismatch compare_with(std::uint64_t seed, std::span<const std::byte> block) {
  Mismatch found;
  const std::size_t words = block.size() / kWordBytes;
  for (std::size_t first = 0; first < words; first += kRunWords) {
    const std::size_t count = std::min(kRunWords, words - first);
    if (is_same(block, seed, {first, count})) continue;
    for (std::size_t i = first; i < first + count; ++i) {
      count_wrong(block.subspan(i * kWordBytes, kWordBytes), word_of(seed, i), i * kWordBytes,
                  found);
    }
  }
  count_wrong(block.subspan(words * kWordBytes), word_of(seed, words), words * kWordBytes, found);
  return found;
}

}  // namespace

KeyMaker::KeyMaker(std::string_view workload_name)
    : workload_(hash_bytes(std::as_bytes(std::span(workload_name)), 0)) {}

BlockKey KeyMaker::key_of(std::uint64_t hash_id) const {
  BlockKey key;
  // Every word is a bijection of the id, so even one of them distinguishes two ids.
  std::uint64_t word = mix(hash_id) ^ workload_;
  for (std::size_t at = 0; at < kKeyBytes; at += sizeof word) {
    word = mix(word + kGolden);
    std::memcpy(key.data() + at, &word, sizeof word);
  }
  return key;
}

BlockPattern::BlockPattern(std::span<const std::byte> key) : seed_(hash_bytes(key, 0)) {}

void BlockPattern::fill(std::span<std::byte> block) const {
  const std::size_t words = block.size() / kWordBytes;
  for (std::size_t i = 0; i < words; ++i) {
    const std::uint64_t word = word_of(seed_, i);
    std::memcpy(block.data() + i * kWordBytes, &word, kWordBytes);
  }
  const std::span<std::byte> end = block.subspan(words * kWordBytes);
  if (end.empty()) return;
  const std::uint64_t last = word_of(seed_, words);
  std::memcpy(end.data(), &last, end.size());
}

Mismatch BlockPattern::compare(std::span<const std::byte> block) const {
  Mismatch found = compare_with(seed_, block);
  if (found.wrong_bytes > 0 && block.size() >= 2 * kWordBytes) {
    const std::uint64_t its_seed = unscramble(load(block.data()));
    found.other_keys_block = compare_with(its_seed, block).wrong_bytes == 0;
  }
  return found;
}

}  // namespace cairn::replay
