#pragma once

#include <string_view>

namespace cairn {

inline constexpr std::size_t kMaxCacheName = 64;
inline constexpr std::string_view kCacheNameRule =
    "a cache's name is 1 to 64 letters, digits, '.', '_' or '-'";

// 1 to kMaxCacheName of the characters [A-Za-z0-9._-], but not "." or "..".
inline bool is_cache_name(std::string_view name) {
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  return !name.empty() && name.size() <= kMaxCacheName && name != "." && name != ".." &&
         name.find_first_not_of(kLetters) == std::string_view::npos;
}

}  // namespace cairn
