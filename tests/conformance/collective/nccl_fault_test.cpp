// NCCL on its fake: each call fails in turn, and every rank gets an error.
#include <dlfcn.h>
#include <gmock/gmock.h>

#include <cstdlib>
#include <optional>
#include <type_traits>

#include "memory/device_runtime.hpp"
#include "tests/conformance/collective/collective_case.hpp"
#include "tests/fakes/cudart/fake_cudart.hpp"

namespace cairn::conformance {
namespace {

constexpr int kUnhandledCudaError = 1;
constexpr int kRemoteError = 6;

struct FakeNccl {
  void (*fail)(const char*, std::uint64_t, int) = nullptr;
  std::uint64_t (*calls)(const char*) = nullptr;
  std::uint64_t (*alive)() = nullptr;
};

// nullopt if the program runs with NVIDIA's library, or with none.
std::optional<FakeNccl> fake_nccl() {
  if (!fakes::FakeCudart::loaded()) return std::nullopt;
  void* const library = ::dlopen("libnccl.so.2", RTLD_NOW);
  if (library == nullptr) return std::nullopt;
  FakeNccl fake;
  const auto look_up = [library](const char* name, auto& function) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    return function != nullptr;
  };
  if (look_up("cairn_fake_nccl_fail", fake.fail) && look_up("cairn_fake_nccl_calls", fake.calls) &&
      look_up("cairn_fake_nccl_alive", fake.alive)) {
    return fake;
  }
  return std::nullopt;
}

class NcclFaultTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_FALSE(cuda_ && !nccl_ && std::getenv("CAIRN_FAKE_CUDA_DEVICES") != nullptr)
        << "the fake of NCCL does not load: " << ::dlerror();
    if (!nccl_) GTEST_SKIP() << "runs on the fake only";
    cuda_->reset(1);
  }
  void TearDown() override {
    if (!nccl_) return;
    EXPECT_EQ(nccl_->alive(), 0U);
    EXPECT_EQ(cuda_->leaks(), "");
  }

  // Makes every kind of call between two ranks. Returns true if all succeed with the right bytes.
  bool work() {
    auto stand = NcclStand::make();
    if (!stand) return false;
    auto joined = join_all(*(*stand)->collectives, 2, std::chrono::seconds(2));
    late_ = !joined && joined.error().code == ErrorCode::deadline_exceeded;
    if (!joined) return false;
    const auto answers = on_each(*joined, [](Communicator& rank) -> Result<> {
      const std::uint32_t me = rank.place().rank;
      std::vector<std::uint64_t> all(2);
      std::uint64_t number = me + 5;
      auto* const bytes = reinterpret_cast<std::byte*>(&number);
      const iovec out{bytes, sizeof number};
      const iovec in{all.data(), sizeof number};
      CAIRN_TRY(rank.all_gather({.source = bytes,
                                 .destination = reinterpret_cast<std::byte*>(all.data()),
                                 .elements = {.count = 1, .type = DataType::uint64}}));
      if (all[0] != 5 || all[1] != 6) return Error{ErrorCode::internal, "gather"};
      using Message = Communicator::Message;
      const Message messages[] = {{Message::Kind::send, 1 - me, {&out, 1}},
                                  {Message::Kind::receive, 1 - me, {&in, 1}}};
      CAIRN_TRY(rank.exchange(messages));
      if (all[0] != 6 - me) return Error{ErrorCode::internal, "exchange"};
      CAIRN_TRY(rank.broadcast({.root = 1, .pieces = {&out, 1}}));
      if (number != 6) return Error{ErrorCode::internal, "broadcast"};
      CAIRN_TRY(rank.all_reduce({.source = bytes,
                                 .destination = bytes,
                                 .elements = {.count = 1, .type = DataType::uint64}}));
      if (number != 12) return Error{ErrorCode::internal, "reduce"};
      return rank.finalize();
    });
    for (const auto& answer : answers) {
      if (answer) continue;
      EXPECT_NE(answer.error().code, ErrorCode::internal) << answer.error().detail;
      late_ = late_ || answer.error().code == ErrorCode::deadline_exceeded;
    }
    return answers[0].has_value() && answers[1].has_value();
  }

  bool late_ = false;  // a step of the last work() exceeded its time
  const std::optional<FakeNccl> nccl_ = fake_nccl();
  const std::optional<fakes::FakeCudart> cuda_ = fakes::FakeCudart::loaded();
};

TEST_F(NcclFaultTest, EachCallOfNcclFailsInTurn) {
  for (const char* call :
       {"ncclGetUniqueId", "ncclCommInitRankConfig", "ncclAllGather", "ncclSend", "ncclRecv",
        "ncclGroupStart", "ncclGroupEnd", "ncclBroadcast", "ncclAllReduce", "ncclCommFinalize"}) {
    for (std::uint64_t n = 1; n < 20; ++n) {
      const std::uint64_t before = nccl_->calls(call);
      nccl_->fail(call, n, kUnhandledCudaError);
      bool fine = work();
      const bool reached = nccl_->calls(call) - before >= n;
      // On a busy machine a step may exceed its time without a fault.
      for (int again = 0; !reached && !fine && late_ && again < 5; ++again) {
        nccl_->fail("", 0, 0);
        fine = work();
      }
      EXPECT_EQ(fine, !reached) << call << " " << n;
      if (!reached) break;
    }
  }
  nccl_->fail("", 0, 0);
  EXPECT_TRUE(work());
}

class NcclHangTest : public NcclFaultTest {
 protected:
  [[noreturn]] void hang();
};

void NcclHangTest::hang() {
  const auto stand = NcclStand::make().value();
  auto joined = join_all(*stand->collectives, 2, std::chrono::milliseconds(200));
  EXPECT_TRUE(joined);
  const auto reduce = [](Communicator& rank) -> Result<> {
    std::uint64_t number = 1;  // memory that is reused after the call
    auto* const bytes = reinterpret_cast<std::byte*>(&number);
    return rank.all_reduce({.source = bytes,
                            .destination = bytes,
                            .elements = {.count = 1, .type = DataType::uint64}});
  };
  // Allocates memory first: a hanging device allocates none.
  for (const auto& answer : on_each(*joined, reduce)) EXPECT_TRUE(answer) << answer.error().detail;
  cuda_->hold(true);
  const auto answers = on_each(*joined, reduce);
  for (const auto& answer : answers) {
    EXPECT_FALSE(answer);
    if (answer) continue;
    EXPECT_EQ(answer.error().code, ErrorCode::device_error) << answer.error().detail;
  }
  EXPECT_NE(cuda_->leaks(), "") << "memory in use by the device must not be freed";
  EXPECT_THAT(stand->runtime->lost().value_or(""),
              testing::HasSubstr("is lost: it did not end the work of a group within 200 ms"));
  cuda_->hold(false);
  joined->clear();
  std::_Exit(HasFailure() ? 1 : 0);
}

// Memory in use by the device stays allocated until the process ends, so the test runs in its own
// process.
TEST_F(NcclHangTest, FailsTheCallAndBlocksNoThread) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(hang(), testing::ExitedWithCode(0), "");
}

TEST_F(NcclFaultTest, SendsASinglePieceOfDeviceMemoryWithoutACopy) {
  constexpr std::uint64_t kBytes = 64 << 10;
  const auto stand = NcclStand::make().value();
  std::vector<Region> on_devices;
  for (int device = 0; device < 2; ++device) {
    on_devices.push_back(stand->runtime->allocate_device(kBytes, {.device_id = device}).value());
  }
  std::vector<std::vector<std::byte>> on_host(2, std::vector<std::byte>(kBytes));
  auto joined = join_all(*stand->collectives, 2, std::chrono::seconds(60)).value();
  // Returns the number of copies that a broadcast makes.
  const auto broadcast = [&](const auto& memory) {
    const auto copies = [this] {
      return cuda_->calls("cudaMemcpyAsync") + cuda_->calls("cudaMemcpyBatchAsync") +
             cuda_->calls("cudaMemcpyPeerAsync");
    };
    const std::uint64_t before = copies();
    for (const auto& answer : on_each(joined, [&](Communicator& rank) {
           const iovec piece{const_cast<std::byte*>(memory[rank.place().rank].data()), kBytes};
           return rank.broadcast({.root = 0, .pieces = {&piece, 1}});
         })) {
      EXPECT_TRUE(answer) << answer.error().detail;
    }
    return copies() - before;
  };
  EXPECT_EQ(broadcast(on_devices), 0U);
  EXPECT_GT(broadcast(on_host), 0U);
}

TEST_F(NcclFaultTest, AsynchronousErrorEndsTheGroup) {
  for (std::uint64_t n : {1U, 2U, 5U, 9U}) {
    nccl_->fail("async", n, kRemoteError);
    EXPECT_FALSE(work()) << n;
  }
  nccl_->fail("", 0, 0);
  EXPECT_TRUE(work());
}

TEST_F(NcclFaultTest, EachCallOfCudaFailsInTurn) {
  struct Call {
    const char* name;
    bool can_be_spared = true;  // the work succeeds without it, or with a retry
  };
  std::uint64_t failures = 0;
  for (const Call& call :
       {Call{"cudaSetDevice"}, Call{"cudaStreamCreateWithFlags"}, Call{"cudaEventCreateWithFlags"},
        Call{"cudaMalloc"}, Call{"cudaHostRegister", false}, Call{"cudaMemcpyAsync", false},
        Call{"cudaEventRecord"}, Call{"cudaLaunchHostFunc", false}}) {
    for (std::uint64_t n = 1; n < 100; ++n) {
      cuda_->reset(n);
      cuda_->fail(call.name, n, 2);  // out of memory, which is not sticky
      const bool fine = work();
      if (cuda_->injected() == 0) {
        EXPECT_TRUE(fine) << call.name << " " << n;
        break;
      }
      EXPECT_TRUE(call.can_be_spared || !fine) << call.name << " " << n;
      ++failures;
    }
  }
  RecordProperty("failures", static_cast<int>(failures));
}

}  // namespace
}  // namespace cairn::conformance
