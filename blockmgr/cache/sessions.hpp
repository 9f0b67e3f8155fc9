#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "blockmgr/index/block_store.hpp"

namespace cairn {

// Which blocks conversations have used, by the name that their client gave them. A name is the
// token's that uses it: the same one from another token is another conversation. Part of a cache's
// state.
class Sessions {
 public:
  // The longest unused are forgotten beyond these: names of 16 MiB at most, and 8 MiB of blocks,
  // which is 16,000 conversations of 64 blocks.
  static constexpr std::size_t kMaxSessions = 65'536;
  static constexpr std::size_t kMaxBlocks = 1'048'576;
  // Of one conversation: as many as a request names. Those that were told first are forgotten.
  static constexpr std::size_t kMaxBlocksEach = 65'536;

  struct Name {
    const LeaseHolder& holder;
    std::string_view session;
  };
  // A request of the conversation used these, the first of the prefix first.
  void add(const Name& name, std::span<const BlockStore::Trail> blocks);
  // Empty of one that is not known. Valid until the next call.
  std::span<const BlockStore::Trail> find(const Name& name);

  std::size_t size() const { return by_name_.size(); }

 private:
  struct Session {
    std::string name;
    std::vector<BlockStore::Trail> blocks;
  };
  static std::string key_of(const Name& name);
  void forget_oldest();

  std::list<Session> by_use_;  // the longest unused first
  std::unordered_map<std::string_view, std::list<Session>::iterator> by_name_;
  std::size_t blocks_ = 0;
};

}  // namespace cairn
