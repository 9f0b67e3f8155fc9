// EXPECT: no member named .in_slots_of'
#include "tests/compile_fail/builder_steps.hpp"

using namespace cairn;

void snippet(const BlockLayout& slots) { auto step = LayoutBuilder().in_slots_of(slots); }
