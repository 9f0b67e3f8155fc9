// EXPECT: no member named .allocate_system'
#include "tests/compile_fail/builder_steps.hpp"

using namespace cairn;

void snippet() { auto step = LayoutBuilder().allocate_system(); }
