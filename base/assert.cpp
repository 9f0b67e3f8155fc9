#include "base/assert.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

#include "base/process_log.hpp"

namespace cairn {

void invariant_broken(std::string_view condition, std::string_view why, const char* file,
                      int line) {
  std::array<char, 2048> text{};
  const int size =
      std::snprintf(text.data(), text.size(), "cairn: invariant broken at %s:%d: %.*s (%.*s)\n",
                    file, line, static_cast<int>(condition.size()), condition.data(),
                    static_cast<int>(why.size()), why.data());
  write_last_words({text.data(), std::min(static_cast<std::size_t>(size), text.size() - 1)});
  std::abort();
}

}  // namespace cairn
