#pragma once

#include <string_view>

namespace cairn {

// Prints the condition, the reason and the place to stderr, and aborts. After a broken invariant
// the program could return wrong bytes. Not std::source_location: clang-tidy 14 does not know it.
[[noreturn]] void invariant_broken(std::string_view condition, std::string_view why,
                                   const char* file = __builtin_FILE(),
                                   int line = __builtin_LINE());

}  // namespace cairn

// Checked in every build. `why` says what would go wrong.
#define CAIRN_ASSERT(condition, why)                \
  do {                                              \
    if (!(condition)) [[unlikely]] {                \
      ::cairn::invariant_broken(#condition, (why)); \
    }                                               \
  } while (false)
