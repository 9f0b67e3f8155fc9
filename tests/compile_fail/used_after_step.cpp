// Compiles, but clang-tidy finds that a step is used twice.
#include "tests/compile_fail/builder_steps.hpp"

using namespace cairn;

void snippet() {
  auto placed = LayoutBuilder().config(kShape).fully_contiguous();
  auto first = std::move(placed).allocate_system();
  auto second = std::move(placed).allocate_system();
}
