// EXPECT: no member named .layer_separate'
#include "tests/compile_fail/builder_steps.hpp"

using namespace cairn;

void snippet() {
  auto step = LayoutBuilder().config(kShape).fully_contiguous().layer_separate(BlockDim::first);
}
