#pragma once

#include "base/result.hpp"
#include "base/unique_function.hpp"

namespace cairn {

// Receives the result of a call, once.
template <class T = void>
using Done = UniqueFunction<void(Result<T>)>;

}  // namespace cairn
