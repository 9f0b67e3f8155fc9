// EXPECT: no member named .with_memory_regions'
#include "tests/compile_fail/builder_steps.hpp"

using namespace cairn;

void snippet() {
  auto step =
      LayoutBuilder().config(kShape).fully_contiguous().allocate_system().with_memory_regions(
          std::vector<RegionView>{});
}
