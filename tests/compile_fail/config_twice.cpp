// EXPECT: no member named .config'
#include "tests/compile_fail/builder_steps.hpp"

using namespace cairn;

void snippet() { auto step = LayoutBuilder().config(kShape).config(kShape); }
