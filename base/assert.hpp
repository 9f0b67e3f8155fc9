#pragma once

#include <string_view>

namespace cairn {

// Prints where and why to stderr and aborts. Called when an invariant of the program is broken:
// going on could hand out a wrong byte. Not std::source_location: clang-tidy 14 does not know it.
[[noreturn]] void invariant_broken(std::string_view condition, std::string_view why,
                                   const char* file = __builtin_FILE(),
                                   int line = __builtin_LINE());

}  // namespace cairn

// Checked in every build. `why` says what is lost if it does not hold.
#define CAIRN_ASSERT(condition, why)                \
  do {                                              \
    if (!(condition)) [[unlikely]] {                \
      ::cairn::invariant_broken(#condition, (why)); \
    }                                               \
  } while (false)
