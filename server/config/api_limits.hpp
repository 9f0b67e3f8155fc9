#pragma once

#include <cstdint>

namespace cairn {

// Limits of requests that neither the HTTP layer nor the block manager checks.
struct ApiLimits {
  // Room for a commit of 65,536 blocks, or a match of a million tokens.
  std::uint64_t max_body_bytes = 32ull << 20;
  // The JSON before the blocks of a bulk write. The default has room for the keys of 20,000 blocks.
  std::uint32_t max_write_header_bytes = 4u << 20;
};

}  // namespace cairn
