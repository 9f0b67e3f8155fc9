#include "memory/host/page_populator.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "memory/host/host_memory.hpp"

namespace cairn {
namespace {

constexpr std::uint64_t kPopulatedPageBytes = 4096;
constexpr std::uint64_t kMemoryBytes = std::uint64_t{12} << 20;  // three steps

Region shared_memory() {
  return map_shared_memory({.size_bytes = kMemoryBytes},
                           std::make_shared<MemoryBudget>("a test", kMemoryBytes))
      .value();
}

PagePopulator::Bytes bytes_of(const Region& region) { return {region.data(), region.size_bytes()}; }

// The bytes of the pages that are in memory.
std::uint64_t resident_bytes(PagePopulator::Bytes memory) {
  std::vector<unsigned char> pages(memory.size() / kPopulatedPageBytes);
  EXPECT_EQ(::mincore(memory.data(), memory.size(), pages.data()), 0);
  return static_cast<std::uint64_t>(
             std::ranges::count_if(pages, [](unsigned char page) { return (page & 1) != 0; })) *
         kPopulatedPageBytes;
}

void wait_until_done(const PagePopulator::Task& task, std::uint64_t size_bytes) {
  while (task.populated_bytes() < size_bytes) std::this_thread::yield();
}

TEST(PagePopulator, PopulatesEveryPageAndKeepsTheBytes) {
  const Region memory = shared_memory();
  memory.data()[5] = std::byte{7};
  PagePopulator populator({.threads = 2});
  const auto task = populator.begin({bytes_of(memory)});
  wait_until_done(*task, kMemoryBytes);
  EXPECT_EQ(resident_bytes(bytes_of(memory)), kMemoryBytes);
  EXPECT_EQ(memory.data()[5], std::byte{7});
  EXPECT_EQ(memory.data()[6], std::byte{0});
}

TEST(PagePopulator, PopulatesOnlyTheGivenParts) {
  const Region memory = shared_memory();
  const PagePopulator::Bytes all = bytes_of(memory);
  const PagePopulator::Bytes first = all.first(2 * kPopulatedPageBytes);
  const PagePopulator::Bytes last = all.last(kPopulatedPageBytes);
  PagePopulator populator({.threads = 1});
  const auto task = populator.begin({first, last});
  wait_until_done(*task, 3 * kPopulatedPageBytes);
  EXPECT_EQ(resident_bytes(first), 2 * kPopulatedPageBytes);
  EXPECT_EQ(resident_bytes(last), kPopulatedPageBytes);
  EXPECT_EQ(resident_bytes(all.subspan(all.size() / 2, kMemoryBytes / 4)), 0u);
}

TEST(PagePopulator, StopsWhenMemoryRunsShort) {
  const Region memory = shared_memory();
  std::atomic<int> asked = 0;
  const std::uint64_t kept = 1000;
  PagePopulator populator({.threads = 1,
                           .available_bytes =
                               [&] {
                                 // Enough for the first step; a byte too few for the second.
                                 const std::uint64_t step = std::uint64_t{4} << 20;
                                 return asked++ == 0 ? kept + step : kept + step - 1;
                               },
                           .kept_free_bytes = kept});
  const auto task = populator.begin({bytes_of(memory)});
  // The second task runs only after the first is abandoned.
  const Region other = shared_memory();
  while (asked.load() < 2) std::this_thread::yield();
  const auto second = populator.begin({bytes_of(other)});
  while (asked.load() < 3) std::this_thread::yield();
  EXPECT_EQ(task->populated_bytes(), std::uint64_t{4} << 20);
  EXPECT_EQ(resident_bytes(bytes_of(memory)), std::uint64_t{4} << 20);
}

// A thread of the lowest priority held the address space while a busy machine kept it from running,
// and the server's network thread waited for it.
TEST(PagePopulator, RestsAfterEachPieceAsLongAsThePieceTook) {
  const Region memory = shared_memory();
  std::atomic<std::uint64_t> rests = 0;
  std::atomic<std::int64_t> rested_ns = 0;
  PagePopulator populator({.threads = 1, .rest = [&](std::chrono::nanoseconds time) {
                             ++rests;
                             rested_ns += time.count();
                           }});
  const auto start = std::chrono::steady_clock::now();
  const auto task = populator.begin({bytes_of(memory)});
  wait_until_done(*task, kMemoryBytes);
  const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(rests, kMemoryBytes / (std::uint64_t{512} << 10));
  EXPECT_GT(rested_ns, 0);
  EXPECT_LE(rested_ns, took.count());
}

TEST(PagePopulator, MemoryMayBeFreedWhileItsPagesArePopulated) {
  PagePopulator populator({.threads = 2});
  for (int round = 0; round < 50; ++round) {
    const Region memory = shared_memory();
    const auto task = populator.begin({bytes_of(memory)});
  }
}

TEST(PagePopulator, DoesNothingWithoutThreads) {
  const Region memory = shared_memory();
  PagePopulator populator({.threads = 0});
  EXPECT_EQ(populator.begin({bytes_of(memory)}), nullptr);
}

}  // namespace
}  // namespace cairn
