#include "replay/block_key.hpp"

#include <cstring>

#include "base/hash.hpp"
#include "replay/mix.hpp"

namespace cairn::replay {

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

}  // namespace cairn::replay
