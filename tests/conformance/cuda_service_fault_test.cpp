// Every call of libcudart fails once, in turn, under the work of a server: the real block manager
// and transfer scheduler over the CUDA runtime on the fake, with kernels, rows and batches. No
// wrong byte, no leak, no hang; errors name the call, and the service goes on.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "memory/cuda/copy_kernel.hpp"
#include "memory/cuda/cuda_runtime.hpp"
#include "tests/blockmgr/rig.hpp"
#include "tests/conformance/cuda_faults.hpp"
#include "tests/fakes/cudart/fake_cudart.hpp"

namespace cairn::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

// Separate layers on the device, so that a transfer has several pieces, enough for rows.
CacheConfig layered_cache() {
  CacheConfig config = small_cache({.device = 6, .pinned = 8, .disk = 12});
  config.shape.num_layers = 6;
  config.tiers[index_of(Tier::device)]->layout = LayoutKind::layer_separate;
  return config;
}

// Kernels and rows even for the smallest jobs.
CopyThresholds eager_forms() {
  CopyThresholds forms;
  forms.load = {.kernel_least_pieces = 1, .kernel_most_piece_bytes = 1 << 20};
  forms.device = forms.load;
  forms.store = {.rows_least_rows = 1};
  return forms;
}
// No kernel and no rows: batches to the device, single copies away from it.
CopyThresholds plain_forms() {
  return {.load = {}, .store = {.batch_least_pieces = 1000}, .device = {}};
}

// The workload's errors.
struct Seen {
  std::vector<Error> errors;
  bool began = false;
};

class Replay {
 public:
  Replay(Rig& rig, Cache& cache, Seen& seen) : rig_(rig), cache_(cache), seen_(seen) {}

  // Chains that do not all fit on the device: they are offloaded, found, loaded back and read.
  void run() {
    for (std::uint64_t first : {0u, 10u, 20u}) {
      note(rig_.put(cache_, {.keys = keys(first, 4), .tier = Tier::device}));
    }
    move(keys(0, 4), Tier::device);
    move(keys(20, 4), Tier::pinned);
    for (std::uint64_t first : {0u, 10u, 20u}) read(keys(first, 4));
    note(rig_.evict(cache_, keys(10, 4), Tier::device));
    read(keys(10, 4));
  }

  // Each read returns the right bytes or an error.
  void read(const std::vector<BlockKey>& names) {
    for (const BlockKey& name : names) {
      const auto bytes = rig_.read(cache_, name);
      note(bytes);
      if (bytes) {
        EXPECT_EQ(*bytes, bytes_of(name, cache_.block_bytes())) << "a wrong byte";
      }
    }
  }

  void move(std::vector<BlockKey> names, Tier to) {
    auto id = cache_.transfer({.keys = std::move(names), .to = to});
    note(id);
    if (!id) return;
    rig_.scheduler->wait_idle();
    const TransferStatus status = rig_.manager->transfer(*id).value();
    EXPECT_EQ(status.blocks_done + status.failures.size(), status.blocks_total);
    for (const auto& failure : status.failures) seen_.errors.push_back(failure.error);
  }

 private:
  template <class T>
  void note(const Result<T>& result) {
    if (!result) seen_.errors.push_back(result.error());
  }

  Rig& rig_;
  Cache& cache_;
  Seen& seen_;
};

class CudaServiceFaults : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(fake_) << "the fake libcudart is not first in LD_LIBRARY_PATH";
    fake_->reset(1);
  }

  // Returns true if enough calls were made for the fault to happen.
  bool run(const CudaFault& fault, const CopyThresholds& forms) {
    fake_->reset(fault.n);
    fake_->fail(fault.call, fault.n, fault.error);
    const bool sticky = fault.error != cudaErrorInvalidValue;
    Seen seen;
    work(forms, sticky, seen);
    EXPECT_EQ(fake_->leaks(), "");
    if (fake_->injected() == 0) {
      EXPECT_TRUE(seen.began);
      EXPECT_TRUE(seen.errors.empty()) << seen.errors.front().detail;
      return false;
    }
    for (const Error& error : seen.errors) {
      EXPECT_NE(error.code, ErrorCode::internal) << error.detail;
      if (error.code != ErrorCode::device_error) continue;
      EXPECT_THAT(error.detail, AnyOf(HasSubstr(fault.call), HasSubstr("lost")));
    }
    return true;
  }

  void work(const CopyThresholds& forms, bool sticky, Seen& seen) {
    auto runtime = make_cuda_runtime(CudaRuntimeOptions{.register_piece_bytes = 16 << 20});
    if (!runtime) {
      EXPECT_EQ(runtime.error().code, ErrorCode::unavailable);
      return;
    }
    Rig rig({.runtime = std::move(*runtime), .copy_forms = forms});
    auto created = rig.manager->create_cache(layered_cache());
    if (!created) {
      seen.errors.push_back(created.error());
      return;
    }
    seen.began = true;
    Cache& cache = *created->cache;
    Replay(rig, cache, seen).run();
    if (fake_->injected() != 0) goes_on(rig, cache, sticky);
    rig.clock.advance_ms(60'000);
    rig.manager->tick();
    EXPECT_EQ(cache.stats().leases, 0u);
    for (Tier tier : kTiers) {
      EXPECT_EQ(count(cache, tier, SlotState::allocated), 0u) << to_string(tier);
      EXPECT_EQ(count(cache, tier, SlotState::committed), 0u) << to_string(tier);
    }
  }

  // After the fault, everything works. If the device is lost, all work without a device does.
  void goes_on(Rig& rig, Cache& cache, bool sticky) {
    EXPECT_TRUE(sticky || !rig.runtime->lost());
    const Tier tier = rig.runtime->lost() ? Tier::pinned : Tier::device;
    // Empties the cache, so that no transfer must make room. Leases of failed clients expire.
    rig.clock.advance_ms(60'000);
    rig.manager->tick();
    ASSERT_TRUE(cache.clear({}).has_value());
    rig.scheduler->wait_idle();
    const auto stored = rig.put(cache, {.keys = keys(70, 3), .tier = tier});
    ASSERT_TRUE(stored.has_value()) << stored.error().detail;
    for (const BlockKey& name : keys(70, 3)) {
      const auto bytes = rig.read(cache, name);
      ASSERT_TRUE(bytes.has_value()) << bytes.error().detail;
      EXPECT_EQ(*bytes, bytes_of(name, cache.block_bytes()));
    }
  }

  // Fails the n-th call for every n, until the workload makes fewer calls. Returns the number of
  // failed calls.
  std::uint64_t fail_each(const std::string& call, cudaError_t error) {
    std::uint64_t made = 0;
    for (const bool eager : {true, false}) {
      for (CudaFault fault{call, 1, error};; fault.n = fault.next({.after = 16, .part = 4})) {
        SCOPED_TRACE(fault.text() + (eager ? " (kernels)" : " (batches)"));
        if (!run(fault, eager ? eager_forms() : plain_forms())) break;
        ++made;
        if (HasFailure()) return made;
      }
    }
    return made;
  }

 private:
  const std::optional<fakes::FakeCudart> fake_ = fakes::FakeCudart::loaded();
};

bool is_made(const std::string& call) { return call != "cudaLaunchKernel" || has_copy_kernel(); }

TEST_P(CudaServiceFaults, CauseNoWrongByteAndAreNamed) {
  EXPECT_EQ(fail_each(GetParam(), cudaErrorInvalidValue) > 0, is_made(GetParam()));
}

TEST_P(CudaServiceFaults, LoseOnlyTheDeviceIfSticky) {
  EXPECT_EQ(fail_each(GetParam(), cudaErrorECCUncorrectable) > 0, is_made(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Calls, CudaServiceFaults,
                         ::testing::Values("cudaMalloc", "cudaFree", "cudaHostRegister",
                                           "cudaHostUnregister", "cudaSetDevice",
                                           "cudaStreamCreateWithFlags", "cudaStreamDestroy",
                                           "cudaStreamQuery", "cudaEventCreateWithFlags",
                                           "cudaEventRecord", "cudaEventQuery", "cudaEventDestroy",
                                           "cudaMemcpyAsync", "cudaMemcpyBatchAsync",
                                           "cudaMemcpy2DAsync", "cudaLaunchKernel",
                                           "cudaMemsetAsync"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST_F(CudaServiceFaults, LoseOnlyTheDeviceIfWorkFails) {
  EXPECT_GT(fail_each("work", cudaErrorIllegalAddress), 0u);
}

}  // namespace
}  // namespace cairn::testing
