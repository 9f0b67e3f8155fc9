#include "memory/host/host_platform.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "memory/host/host_runtime.hpp"

namespace cairn {
namespace {

struct Machine {
  const char* name;
  HostMemoryFacts facts;
  MemoryVisibility sees;
};

constexpr Machine kMachines[] = {
    {"coherent caches", {.can_be_shared = true, .is_seen_at_once = true}, MemoryVisibility::system},
    {"caches that are indexed by virtual addresses",
     {.can_be_shared = true},
     MemoryVisibility::explicit_dma},
    {"a sandbox without shared memory", {}, MemoryVisibility::device},
};

TEST(HostPlatform, VisibilityFollowsTheMachine) {
  for (const Machine& machine : kMachines) {
    EXPECT_EQ(host_visibility(machine.facts), machine.sees) << machine.name;
  }
}

// Cairn is built for x86-64 and ARM64 Linux, whose caches are coherent.
TEST(HostPlatform, ReadsThisMachine) {
  const HostMemoryFacts facts = read_host_memory_facts();
  EXPECT_TRUE(facts.can_be_shared);
  EXPECT_TRUE(facts.is_seen_at_once);
  EXPECT_EQ(make_host_runtime({}).value()->visibility(), host_visibility(facts));
}

// A process whose files may not grow shares no memory, as in some sandboxes. (One that may open no file would do as
// well, but the undefined behaviour sanitizer opens pipes to look at an object.)
TEST(HostPlatform, TheRuntimeTakesItsVisibilityFromTheMachine) {
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ::rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  const ::rlimit none{.rlim_cur = 0, .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
  const auto runtime = make_host_runtime({});
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::signal(SIGXFSZ, handler);
  ASSERT_TRUE(runtime) << runtime.error().detail;
  EXPECT_EQ((*runtime)->visibility(), MemoryVisibility::device);
}

}  // namespace
}  // namespace cairn
