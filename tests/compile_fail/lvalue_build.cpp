// EXPECT: discards qualifiers|is an lvalue
#include "tests/compile_fail/builder_steps.hpp"

using namespace cairn;

void snippet() {
  auto backed = LayoutBuilder().config(kShape).fully_contiguous().allocate_system();
  auto layout = backed.build();
}
