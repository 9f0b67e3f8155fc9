#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace cairn::sim {

// The fewest steps found, in their order, with which it still fails: leaves out halves, quarters
// and so on for as long as that helps (delta debugging, Zeller 1999). `fails` is asked `tries`
// times at most. REQUIRES: it fails with all of the steps.
using Steps = std::vector<std::uint32_t>;
Steps shrink(Steps steps, std::uint32_t tries, const std::function<bool(const Steps&)>& fails);

}  // namespace cairn::sim
