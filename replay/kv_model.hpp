#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "blockmgr/eviction/group_use.hpp"
#include "replay/workload.hpp"

namespace cairn::replay {

// A model whose layers do not all remember the same: the KV groups of a cache for it.
struct KvModel {
  struct Group {
    std::string name = {};
    UsedGroup::Kind kind = UsedGroup::Kind::full;
    std::uint32_t window_tokens = 0;  // window only
    // Of a block, as in the API's `layout`.
    std::uint64_t num_layers = 0;
    std::uint64_t outer_dim = 0;
    std::uint64_t page_size = 0;
    std::uint64_t inner_dim = 0;
    std::uint64_t dtype_width_bytes = 0;

    std::uint64_t block_bytes() const {
      return num_layers * outer_dim * page_size * inner_dim * dtype_width_bytes;
    }
    friend bool operator==(const Group&, const Group&) = default;
  };
  std::string name = {};           // gemma, state, or the file's path
  std::uint32_t block_tokens = 0;  // that a key names
  std::vector<Group> groups = {};

  // The bytes that a key's tokens take if each layer were one of full attention: the unit of
  // capacities.
  std::uint64_t as_if_full_bytes() const;
  GroupUse use() const;
  // The fields of a cache's body: `block_tokens` and `kv_groups`.
  nlohmann::json body() const;
  friend bool operator==(const KvModel&, const KvModel&) = default;
};

// `gemma`: five of six layers have a window of 1,024 tokens, each in a group of its own, so that
// all groups have blocks of one size. `state`: three of four layers have a state, which takes as
// much as six blocks of the full group. Otherwise a file with a JSON object that has
// `block_tokens` and `kv_groups` as in the body of a cache. `block_tokens`: of gemma and state.
// Errors name the field.
Result<KvModel> kv_model_from(const std::string& word, std::uint64_t block_tokens);

// The same requests, with one id per `key_tokens` tokens instead of one per `block_tokens`. Error:
// impossible if the one is no multiple of the other.
struct FinerKeys {
  std::uint64_t block_tokens = 0;
  std::uint64_t key_tokens = 0;
};
Result<std::unique_ptr<Workload>> with_finer_keys(std::unique_ptr<Workload> workload,
                                                  const FinerKeys& keys);

}  // namespace cairn::replay
