#pragma once

#include <cstdlib>
#include <string>

namespace cairn {

// The environment variable's value; empty if it is not set.
inline std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace cairn
