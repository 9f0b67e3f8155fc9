// main() of GoogleTest, and of the process that tests of shared memory start.
#include <gmock/gmock.h>

#include <cstddef>

#include "tests/conformance/importing_process.hpp"

int main(int argc, char** argv) {
  using namespace cairn::conformance;
  if (is_importing_process(argc, argv)) {
    return run_importing_process({argv + 2, static_cast<std::size_t>(argc - 2)});
  }
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
