// EXPECT: use of deleted function|implicitly.deleted|deleted constructor
#include "tests/compile_fail/builder_steps.hpp"

using namespace cairn;

void snippet() {
  auto placed = LayoutBuilder().config(kShape).fully_contiguous();
  auto copy = placed;
}
