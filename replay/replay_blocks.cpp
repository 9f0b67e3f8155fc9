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

bool same_run(const std::byte* from, std::uint64_t counter, std::size_t words) {
  std::uint64_t difference = 0;
  for (std::size_t i = 0; i < words; ++i) {
    difference |= load(from + i * kWordBytes) ^ scramble(counter + i * kGolden);
  }
  return difference == 0;
}

Mismatch compare_with(std::uint64_t seed, std::span<const std::byte> block) {
  Mismatch found;
  const std::size_t words = block.size() / kWordBytes;
  for (std::size_t first = 0; first < words; first += kRunWords) {
    const std::size_t count = std::min(kRunWords, words - first);
    const std::size_t offset = first * kWordBytes;
    if (same_run(block.data() + offset, seed + first * kGolden, count)) continue;
    for (std::size_t i = first; i < first + count; ++i) {
      count_wrong(block.subspan(i * kWordBytes, kWordBytes), scramble(seed + i * kGolden),
                  i * kWordBytes, found);
    }
  }
  count_wrong(block.subspan(words * kWordBytes), scramble(seed + words * kGolden),
              words * kWordBytes, found);
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
    const std::uint64_t word = scramble(seed_ + i * kGolden);
    std::memcpy(block.data() + i * kWordBytes, &word, kWordBytes);
  }
  const std::span<std::byte> end = block.subspan(words * kWordBytes);
  if (end.empty()) return;
  const std::uint64_t last = scramble(seed_ + words * kGolden);
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
