#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "blockmgr/cache/cache.hpp"
#include "server/codec/kv_group_names.hpp"

namespace cairn::routes {

// The JSON header of a bulk write.
struct WriteHeader {
  std::vector<BlockKey> keys;
  std::vector<std::optional<BlockKey>> parents;  // one per key
  std::optional<Tier> tier;                      // nullopt: the highest
  CommitBlock each;                              // the options that all blocks share
  RequestHint hint;
  std::optional<std::uint32_t> pin_ms;  // cache_control: pins the blocks for this time
  KvGroupNumber kv_group = 0;           // of all blocks
};

Result<WriteHeader> read_write_header(std::span<const std::byte> text, std::size_t max_keys,
                                      const KvGroupNames& groups);

}  // namespace cairn::routes
