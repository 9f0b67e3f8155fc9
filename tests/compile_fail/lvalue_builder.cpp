// EXPECT: discards qualifiers|is an lvalue
#include "tests/compile_fail/builder_steps.hpp"

using namespace cairn;

void snippet() {
  LayoutBuilder builder;
  auto step = builder.config(kShape);
}
