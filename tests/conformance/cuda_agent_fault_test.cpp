// Every call of libcudart fails once, in turn, while an engine's device memory is loaded and
// stored. The memory is opened by a CUDA IPC handle or by a descriptor. No wrong byte, no leak, no
// hang; errors name the call. The next operations work, or return that the device is lost.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>

#include "memory/cuda/copy_kernel.hpp"
#include "memory/cuda/cuda_runtime.hpp"
#include "tests/blockmgr/rig.hpp"
#include "tests/conformance/cuda_faults.hpp"
#include "tests/fakes/cudart/fake_cudart.hpp"

namespace cairn::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr std::uint32_t kAgentBlocks = 16;
constexpr std::uint64_t kLayerBytes = kAgentBlocks * 32;  // of small_shape()
constexpr std::uint64_t kUnitBytes = 2 << 20;             // of memory behind a descriptor

// The handle of another process's memory: CUDA opens no handle in the process that made it.
cudaIpcMemHandle_t& engines_handle() {
  static cudaIpcMemHandle_t handle{};
  return handle;
}

// The other process: allocates memory, sends its handle, and stays until this process ends.
[[noreturn]] void be_the_engine(int tell) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  void* memory = nullptr;
  cudaIpcMemHandle_t handle{};
  if (cudaMalloc(&memory, 2 * kLayerBytes) != cudaSuccess ||
      cudaIpcGetMemHandle(&handle, memory) != cudaSuccess ||
      ::write(tell, &handle, sizeof handle) != sizeof handle) {
    ::_exit(1);
  }
  for (;;) ::pause();
}

EngineMemoryConfig engine_memory_of(const std::string& name, const ExportedMemory& memory) {
  EngineMemoryConfig config{.name = name, .shape = small_shape()};
  config.shape.num_blocks = kAgentBlocks;
  for (std::uint64_t layer = 0; layer < 2; ++layer) {
    config.regions.push_back(
        {.memory = memory, .offset_bytes = layer * kLayerBytes, .size_bytes = kLayerBytes});
    if (memory.file) config.regions.back().descriptor = 0;
  }
  return config;
}

// An engine's life: it registers, loads blocks of each tier into its memory, and stores them under
// other keys.
class EngineLife {
 public:
  EngineLife(Rig& rig, std::shared_ptr<Cache> cache) : rig_(rig), cache_(std::move(cache)) {}

  // Callers use `first` 1,000 apart, so that two lives share no keys.
  void run(const EngineMemoryConfig& config, std::uint64_t first) {
    first_ = first;
    const auto put = rig_.manager->engine_memories().put(config, {.lease_ms = 1000});
    if (!note(put)) return;
    const std::vector<std::uint32_t> loaded = load(config.name);
    store(config.name, loaded, Tier::device);
    store(config.name, loaded, Tier::disk);
    EXPECT_TRUE(rig_.manager->engine_memories().remove(config.name, {}, true, [] {}));
  }
  const std::vector<Error>& errors() const { return errors_; }

 private:
  template <class T>
  bool note(const Result<T>& result) {
    if (!result) errors_.push_back(result.error());
    return result.has_value();
  }
  // Waits for the transfer and notes its failures. nullopt if it did not start.
  std::optional<TransferStatus> ended(const Result<TransferId>& id) {
    if (!note(id)) return std::nullopt;
    rig_.scheduler->wait_idle();
    TransferStatus status = rig_.manager->transfer(*id).value();
    EXPECT_EQ(status.blocks_done + status.failures.size(), status.blocks_total);
    for (const auto& failure : status.failures) errors_.push_back(failure.error);
    return status;
  }
  static bool has_failed(const TransferStatus& status, const BlockKey& name) {
    return std::ranges::any_of(status.failures,
                               [&](const auto& failure) { return failure.key == name; });
  }

  // Returns the engine's blocks that were loaded without a reported failure.
  std::vector<std::uint32_t> load(const std::string& name) {
    std::vector<BlockKey> asked;
    std::vector<std::uint32_t> blocks;
    for (const Tier tier : kTiers) {
      const std::uint64_t at = first_ + 10 * index_of(tier);
      if (!note(rig_.put(*cache_, {.keys = keys(at, 2), .tier = tier}))) continue;
      for (const BlockKey& made : keys(at, 2)) {
        names_[blocks.size()] = made;
        blocks.push_back(static_cast<std::uint32_t>(blocks.size()));
        asked.push_back(made);
      }
    }
    if (asked.empty()) return {};
    const auto status = ended(rig_.manager->engine_memories().load(
        name, {}, {.cache = cache_, .memory = {}, .keys = asked, .blocks = blocks}));
    if (!status) return {};
    std::erase_if(blocks, [&](std::uint32_t i) { return has_failed(*status, asked[i]); });
    return blocks;
  }
  // Stores the blocks, then reads them through the cache: the CPU does not reach the engine's
  // memory.
  void store(const std::string& name, const std::vector<std::uint32_t>& blocks, Tier tier) {
    if (blocks.empty()) return;
    const std::uint64_t at = first_ + 100 * (1 + index_of(tier));
    EngineStoreRequest request;
    request.cache = cache_;
    request.keys = keys(at, blocks.size());
    request.blocks = blocks;
    request.parents.resize(blocks.size());
    request.tier = tier;
    const auto status = ended(rig_.manager->engine_memories().store(name, std::move(request)));
    if (!status) return;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const BlockKey stored = key(at + i);
      EXPECT_EQ(rig_.match(*cache_, {stored}, 0).blocks.empty(), has_failed(*status, stored));
      if (has_failed(*status, stored)) continue;
      const auto bytes = rig_.read(*cache_, stored);
      if (!note(bytes)) continue;
      EXPECT_EQ(*bytes, bytes_of(names_[blocks[i]], cache_->block_bytes())) << "a wrong byte";
    }
  }

  Rig& rig_;
  const std::shared_ptr<Cache> cache_;
  std::uint64_t first_ = 0;
  std::array<BlockKey, 6> names_ = {key(0), key(0), key(0), key(0), key(0), key(0)};
  std::vector<Error> errors_;
};

class CudaAgentFaults : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(fake_) << "the fake libcudart is not first in LD_LIBRARY_PATH";
    fake_->reset(1);
  }

  // Fails the n-th call for every n, until the engine's life makes fewer calls. Returns the number
  // of failed calls.
  std::uint64_t fail_each(const std::string& call, cudaError_t error) {
    std::uint64_t made = 0;
    for (CudaFault fault{call, 1, error};; fault.n = fault.next({.after = 32, .part = 8})) {
      SCOPED_TRACE(fault.text());
      if (!run(fault)) break;
      ++made;
      if (HasFailure()) break;
    }
    RecordProperty(call, std::to_string(made));
    return made;
  }

 private:
  // Returns true if enough calls were made for the fault to happen.
  bool run(const CudaFault& fault) {
    fake_->reset(fault.n);
    fake_->fail(fault.call, fault.n, fault.error);
    std::vector<Error> errors;
    live(fault.error != cudaErrorInvalidValue, errors);
    EXPECT_EQ(fake_->leaks(), "");
    if (fake_->injected() == 0) {
      EXPECT_TRUE(errors.empty()) << errors.front().detail;
      return false;
    }
    for (const Error& error : errors) {
      EXPECT_NE(error.code, ErrorCode::internal) << error.detail;
      if (error.code != ErrorCode::device_error && error.code != ErrorCode::impossible) continue;
      EXPECT_THAT(error.detail, AnyOf(HasSubstr(fault.call), HasSubstr("lost")));
    }
    return true;
  }

  void live(bool sticky, std::vector<Error>& errors) {
    auto runtime = make_cuda_runtime(CudaRuntimeOptions{.register_piece_bytes = 16 << 20});
    if (!runtime) return errors.push_back(runtime.error());
    Rig rig({.runtime = std::move(*runtime)});
    // Without device 0 the engine's memory cannot be opened.
    if (!rig.runtime->left_out().empty()) {
      return errors.push_back(Error{ErrorCode::device_error, rig.runtime->left_out()[0].why});
    }
    auto created = rig.manager->create_cache(
        small_cache({.device = 16, .pinned = 16, .disk = 32}, OffloadMode::never));
    if (!created) return errors.push_back(created.error());
    EngineLife life(rig, created->cache);
    life.run(engine_memory_of("ipc", by_handle()), 1000);
    {
      auto own = rig.runtime->allocate_device(kUnitBytes, {.by_descriptor = true});
      const auto memory = own ? own->share() : Result<ExportedMemory>(own.error());
      if (memory) life.run(engine_memory_of("vmm", *memory), 2000);
      if (!memory) errors.push_back(memory.error());
    }
    errors.insert(errors.end(), life.errors().begin(), life.errors().end());
    if (fake_->injected() != 0) goes_on(rig, created->cache, sticky);
    rig.clock.advance_ms(60'000);
    rig.manager->tick();
    EXPECT_EQ(created->cache->stats().leases, 0u);
    for (const Tier tier : kTiers) {
      EXPECT_EQ(count(*created->cache, tier, SlotState::allocated), 0u) << to_string(tier);
      EXPECT_EQ(count(*created->cache, tier, SlotState::committed), 0u) << to_string(tier);
    }
    EXPECT_EQ(rig.manager->engine_memories().stats().engine_memories, 0u);
  }

  // After the fault, the same engine registers, loads and stores. If the device is lost, its
  // registration returns that, and work without a device succeeds.
  void goes_on(Rig& rig, const std::shared_ptr<Cache>& cache, bool sticky) {
    EXPECT_TRUE(sticky || !rig.runtime->lost());
    rig.clock.advance_ms(60'000);
    rig.manager->tick();
    ASSERT_TRUE(cache->clear({}).has_value());
    rig.scheduler->wait_idle();
    if (!rig.runtime->lost()) {
      EngineLife again(rig, cache);
      again.run(engine_memory_of("ipc", by_handle()), 3000);
      EXPECT_TRUE(again.errors().empty()) << again.errors().front().detail;
      return;
    }
    const auto refused =
        rig.manager->engine_memories().put(engine_memory_of("ipc", by_handle()), {.lease_ms = 1});
    ASSERT_FALSE(refused.has_value());
    EXPECT_THAT(refused.error().detail, HasSubstr("is lost"));
    ASSERT_TRUE(rig.put(*cache, {.keys = keys(70, 3), .tier = Tier::pinned}));
    for (const BlockKey& name : keys(70, 3)) {
      EXPECT_EQ(rig.read(*cache, name).value(), bytes_of(name, cache->block_bytes()));
    }
  }

  static ExportedMemory by_handle() {
    return {.kind = ExportedMemory::Kind::cuda_ipc,
            .handle = std::string(engines_handle().reserved, sizeof engines_handle().reserved),
            .size_bytes = 2 * kLayerBytes};
  }

  const std::optional<fakes::FakeCudart> fake_ = fakes::FakeCudart::loaded();
};

TEST_P(CudaAgentFaults, CauseNoWrongByteAndAreNamed) {
  EXPECT_GT(fail_each(GetParam(), cudaErrorInvalidValue), 0u);
}

TEST_P(CudaAgentFaults, LoseOnlyTheDeviceIfSticky) {
  EXPECT_GT(fail_each(GetParam(), cudaErrorECCUncorrectable), 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Calls, CudaAgentFaults,
    ::testing::Values(
        "cudaGetDeviceCount", "cudaGetDeviceProperties", "cudaDeviceGetAttribute",
        "cudaDeviceGetPCIBusId", "cudaSetDevice", "cudaSetDeviceFlags", "cudaMalloc", "cudaFree",
        "cudaHostRegister", "cudaHostUnregister", "cudaStreamCreateWithFlags", "cudaStreamDestroy",
        "cudaStreamQuery", "cudaEventCreateWithFlags", "cudaEventRecord", "cudaEventQuery",
        "cudaEventDestroy", "cudaMemcpyAsync", "cudaMemsetAsync", "cudaIpcOpenMemHandle",
        "cudaIpcCloseMemHandle", "cudaGetDriverEntryPointByVersion", "cuMemGetAddressRange",
        "cuDeviceGet", "cuDeviceGetAttribute", "cuMemGetAllocationGranularity", "cuMemCreate",
        "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemExportToShareableHandle",
        "cuMemImportFromShareableHandle", "cuMemGetAllocationPropertiesFromHandle", "cuMemUnmap",
        "cuMemAddressFree", "cuMemRelease"),
    [](const auto& tested) { return std::string(tested.param); });

TEST_F(CudaAgentFaults, LoseOnlyTheDeviceIfWorkFails) {
  EXPECT_GT(fail_each("work", cudaErrorIllegalAddress), 0u);
}

}  // namespace

// Call before any thread starts. Returns false if no CUDA answers; the tests then fail.
bool start_engine() {
  std::array<int, 2> pipe{};
  if (::pipe(pipe.data()) != 0) return false;
  if (::fork() == 0) be_the_engine(pipe[1]);
  ::close(pipe[1]);
  const bool received =
      ::read(pipe[0], &engines_handle(), sizeof engines_handle()) == sizeof engines_handle();
  ::close(pipe[0]);
  return received;
}

}  // namespace cairn::testing

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  static_cast<void>(cairn::testing::start_engine());
  return RUN_ALL_TESTS();
}
