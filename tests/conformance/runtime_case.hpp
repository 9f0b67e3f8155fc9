#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "memory/cuda/cuda_runtime.hpp"
#include "memory/device_runtime.hpp"
#include "memory/host/host_runtime.hpp"
#include "tests/conformance/stream_gate.hpp"
#include "tests/fakes/cudart/fake_cudart.hpp"

namespace cairn::conformance {

// A runtime under test, and the gate that holds one of its streams.
struct RuntimeCase {
  std::string name;
  Result<std::unique_ptr<DeviceRuntime>> (*make)();
  std::unique_ptr<StreamGate> (*make_gate)();
};

inline void PrintTo(const RuntimeCase& tested, std::ostream* out) { *out << tested.name; }

inline std::vector<RuntimeCase> runtime_cases() {
  return {{"host", [] { return make_host_runtime({.devices = 2}); }, make_page_gate},
          {"cuda", make_cuda_runtime, make_cuda_gate}};
}

inline bool gpu_required() {
  const char* const value = std::getenv("CAIRN_REQUIRE_GPU");
  return value != nullptr && std::string_view(value) == "1";
}

// Skips if the runtime is not available on this machine. Fails instead with CAIRN_REQUIRE_GPU=1, or
// on the fake, which is always available.
class RuntimeTest : public testing::TestWithParam<RuntimeCase> {
 protected:
  void SetUp() override {
    auto made = GetParam().make();
    if (!made && made.error().code == ErrorCode::unavailable && !gpu_required() && !fake_) {
      GTEST_SKIP() << GetParam().name << ": " << made.error().detail;
    }
    ASSERT_TRUE(made.has_value()) << GetParam().name << ": " << made.error().detail;
    runtime_ = std::move(made).value();
  }
  void TearDown() override {
    runtime_.reset();
    if (fake_) {
      EXPECT_EQ(fake_->leaks(), "");
    }
  }
  // REQUIRES in tests that hold a stream: ASSERT_NE(make_gate(), nullptr).
  std::unique_ptr<StreamGate> make_gate() { return GetParam().make_gate(); }

  const std::optional<fakes::FakeCudart> fake_ = fakes::FakeCudart::loaded();
  std::unique_ptr<DeviceRuntime> runtime_;
};

}  // namespace cairn::conformance
