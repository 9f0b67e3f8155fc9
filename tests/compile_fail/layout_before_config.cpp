// EXPECT: no member named .fully_contiguous'
#include "tests/compile_fail/builder_steps.hpp"

using namespace cairn;

void snippet() { auto step = LayoutBuilder().fully_contiguous(); }
