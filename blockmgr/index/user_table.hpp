#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <unordered_map>

#include "blockmgr/index/types.hpp"

namespace cairn {

// The user of a block, in one byte of its entry: a token, or kSeveralUsers.
using UserNumber = std::uint8_t;
inline constexpr UserNumber kSeveralUsers = std::numeric_limits<UserNumber>::max();
inline constexpr UserNumber kNoToken = 1;  // 0 is no number: the entry is unused

// Numbers the tokens that use one cache. Each number stands for one name, so tokens beyond the
// first 253 count as kSeveralUsers: no block is known to be theirs alone. Not thread-safe.
class UserTable {
 public:
  // Null: a caller without a token.
  UserNumber number_of(const LeaseHolder& holder) {
    if (holder == nullptr) return kNoToken;
    if (const auto known = numbers_.find(*holder); known != numbers_.end()) return known->second;
    if (numbers_.size() == kMaxNames) return kSeveralUsers;
    const auto number = static_cast<UserNumber>(kNoToken + 1 + numbers_.size());
    numbers_.emplace(*holder, number);
    return number;
  }

 private:
  static constexpr std::size_t kMaxNames = kSeveralUsers - kNoToken - 1;

  std::unordered_map<std::string, UserNumber> numbers_;
};

}  // namespace cairn
