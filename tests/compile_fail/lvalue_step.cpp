// EXPECT: discards qualifiers|is an lvalue
#include "tests/compile_fail/builder_steps.hpp"

using namespace cairn;

void snippet() {
  auto placed = LayoutBuilder().config(kShape).fully_contiguous();
  auto step = placed.allocate_system();
}
