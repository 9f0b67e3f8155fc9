// EXPECT: use of deleted function|implicitly.deleted|deleted constructor
#include "tests/compile_fail/builder_steps.hpp"

using namespace cairn;

void snippet() {
  auto layout = LayoutBuilder().config(kShape).fully_contiguous().allocate_system().build();
  auto copy = layout.value();
}
