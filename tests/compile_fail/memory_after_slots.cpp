// EXPECT: no member named .allocate_system'
#include "tests/compile_fail/builder_steps.hpp"

using namespace cairn;

void snippet(const BlockLayout& slots) {
  auto step = LayoutBuilder().config(kShape).in_slots_of(slots).allocate_system();
}
