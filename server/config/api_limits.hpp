#pragma once

#include <cstdint>

namespace cairn {

// The bounds of requests that the HTTP machinery and the block manager do not know.
struct ApiLimits {
  // A commit of 65,536 blocks, or a match of a million tokens, with room to spare.
  std::uint64_t max_body_bytes = 32ull << 20;
  // The JSON in front of the blocks of a bulk write: names 20,000 blocks.
  std::uint32_t max_write_header_bytes = 4u << 20;
};

}  // namespace cairn
