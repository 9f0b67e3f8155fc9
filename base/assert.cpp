#include "base/assert.hpp"

#include <cstdio>
#include <cstdlib>

namespace cairn {

void invariant_broken(std::string_view condition, std::string_view why, const char* file,
                      int line) {
  std::fprintf(stderr, "cairn: invariant broken at %s:%d: %.*s (%.*s)\n", file, line,
               static_cast<int>(condition.size()), condition.data(), static_cast<int>(why.size()),
               why.data());
  std::fflush(stderr);
  std::abort();
}

}  // namespace cairn
