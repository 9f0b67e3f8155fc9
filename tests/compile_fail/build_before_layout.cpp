// EXPECT: no member named .build'
#include "tests/compile_fail/builder_steps.hpp"

using namespace cairn;

void snippet() { auto layout = LayoutBuilder().config(kShape).build(); }
