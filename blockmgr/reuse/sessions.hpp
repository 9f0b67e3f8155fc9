#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "blockmgr/index/block_store.hpp"

namespace cairn {

// The blocks that conversations have used. A conversation has the name that its client gave it; the
// same name from another token is another conversation. Part of a cache's state.
class Sessions {
 public:
  // Beyond these limits the longest unused conversations are forgotten. Names use at most 16 MiB,
  // and blocks 8 MiB, which is 16,000 conversations of 64 blocks.
  static constexpr std::size_t kMaxSessions = 65'536;
  static constexpr std::size_t kMaxBlocks = 1'048'576;
  // Per conversation: as many as a request may name. The oldest are forgotten first.
  static constexpr std::size_t kMaxBlocksEach = 65'536;

  struct Name {
    const LeaseHolder& holder;
    std::string_view session;
  };
  // Adds blocks that a request of the conversation used, in the order of the prefix.
  struct Use {
    std::span<const BlockStore::Trail> blocks;
    std::int64_t unix_ms = 0;
  };
  void add(const Name& name, Use use);
  // Empty if the conversation is unknown. Valid until the next call.
  std::span<const BlockStore::Trail> find(const Name& name);

  // A conversation, as it was listed.
  struct Known {
    LeaseHolder holder;
    std::string session;
    std::int64_t last_use_unix_ms = 0;
  };
  // The latest used first, at most `limit`; of that token only, if one is given. Looks at
  // kMaxLookedAt conversations, which takes a tenth of a millisecond.
  static constexpr std::size_t kMaxLookedAt = 4'096;
  std::vector<Known> latest(const std::optional<std::string>& holder, std::size_t limit) const;
  // The same as find(), but no use.
  std::span<const BlockStore::Trail> peek(const Name& name) const;

  std::size_t size() const { return by_name_.size(); }

 private:
  struct Session {
    std::string name;  // key_of()
    LeaseHolder holder;
    std::vector<BlockStore::Trail> blocks;
    std::int64_t last_use_unix_ms = 0;
  };
  static std::string key_of(const Name& name);
  void forget_oldest();

  std::list<Session> by_use_;  // longest unused first
  std::unordered_map<std::string_view, std::list<Session>::iterator> by_name_;
  std::size_t blocks_ = 0;
};

}  // namespace cairn
