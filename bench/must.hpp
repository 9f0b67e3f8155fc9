#pragma once

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/result.hpp"

namespace cairn {

// The value of a Result that a benchmark cannot do without: ends the program where it failed.
template <class T>
T must(Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "bench: %s\n", result.error().detail.c_str());
    std::abort();
  }
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

}  // namespace cairn
