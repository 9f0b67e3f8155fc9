// EXPECT: nodiscard|warn_unused_result
#include "tests/compile_fail/builder_steps.hpp"

using namespace cairn;

void snippet() { LayoutBuilder().config(kShape).fully_contiguous().allocate_system().build(); }
