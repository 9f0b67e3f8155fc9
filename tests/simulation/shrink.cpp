#include "tests/simulation/shrink.hpp"

#include <algorithm>

namespace cairn::sim {

Steps shrink(Steps steps, std::uint32_t tries, const std::function<bool(const Steps&)>& fails) {
  std::size_t chunk = (steps.size() + 1) / 2;
  while (chunk > 0) {
    bool helped = false;
    for (std::size_t first = 0; first < steps.size() && tries > 0;) {
      const std::size_t end = std::min(first + chunk, steps.size());
      Steps fewer(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(first));
      fewer.insert(fewer.end(), steps.begin() + static_cast<std::ptrdiff_t>(end), steps.end());
      --tries;
      if (fails(fewer)) {
        steps = std::move(fewer);
        helped = true;
      } else {
        first = end;
      }
    }
    if (tries == 0) break;
    if (chunk == 1 && !helped) break;
    if (chunk > 1 || !helped) chunk = std::max<std::size_t>(chunk / 2, 1);
  }
  return steps;
}

}  // namespace cairn::sim
