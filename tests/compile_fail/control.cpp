// The same snippets in the right order. They must compile; otherwise the others fail for another
// reason.
#include "tests/compile_fail/builder_steps.hpp"

using namespace cairn;

Result<BlockLayout> in_one_chain() {
  return LayoutBuilder().config(kShape).fully_contiguous().allocate_system().build();
}

Result<BlockLayout> step_by_step(DeviceRuntime& runtime) {
  LayoutBuilder builder;
  auto configured = std::move(builder).config(kShape);
  auto placed = std::move(configured).layer_separate(BlockDim::first);
  auto backed = std::move(placed).allocate_device(runtime, {});
  auto layout = std::move(backed).build();
  auto moved = std::move(layout).value();
  return moved;
}
