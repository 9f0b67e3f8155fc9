#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace cairn::sim {

// The fewest steps found, in order, that still fail. Leaves out halves, quarters and so on while
// that helps (delta debugging, Zeller 1999). Calls `fails` at most `tries` times. REQUIRES: all
// steps together fail.
using Steps = std::vector<std::uint32_t>;
Steps shrink(Steps steps, std::uint32_t tries, const std::function<bool(const Steps&)>& fails);

}  // namespace cairn::sim
