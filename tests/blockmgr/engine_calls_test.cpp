// Each system call that agents cause fails once, in turn: while they register memory, load, store,
// register again and end. The linker replaces the system's calls with these (see CMakeLists.txt) in
// statically linked code, which is our own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/vfs.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <filesystem>
#include <fstream>

#include "tests/blockmgr/copying_engine.hpp"

namespace cairn::testing {
namespace {

// Which call fails. Several threads make calls.
struct Plan {
  std::atomic<std::uint64_t> n{0};  // 0: do not count
  std::atomic<std::uint64_t> calls{0};
  std::atomic<const char*> failed{nullptr};
};
Plan& plan() {
  static Plan only;
  return only;
}

bool is_next(const char* call, int error) {
  const std::uint64_t n = plan().n;
  if (n == 0 || ++plan().calls != n) return false;
  plan().failed = call;
  errno = error;
  return true;
}

}  // namespace
}  // namespace cairn::testing

extern "C" {

using cairn::testing::is_next;

int __real_open(const char* path, int flags, ...);
int __wrap_open(const char* path, int flags, ...) {
  std::va_list more;
  va_start(more, flags);
  const auto mode = static_cast<::mode_t>(va_arg(more, int));
  va_end(more);
  return is_next("open", EMFILE) ? -1 : __real_open(path, flags, mode);
}
int __real_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, ...) {
  std::va_list more;
  va_start(more, command);
  void* const argument = va_arg(more, void*);
  va_end(more);
  return is_next("fcntl", ENOLCK) ? -1 : __real_fcntl(fd, command, argument);
}
long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...) {
  std::va_list more;
  va_start(more, number);
  long of[6];
  for (long& argument : of) argument = va_arg(more, long);
  va_end(more);
  return is_next("syscall", EPERM)
             ? -1
             : __real_syscall(number, of[0], of[1], of[2], of[3], of[4], of[5]);
}
void* __real_mmap(void* at, size_t size, int access, int flags, int fd, off_t offset);
void* __wrap_mmap(void* at, size_t size, int access, int flags, int fd, off_t offset) {
  return is_next("mmap", ENOMEM) ? MAP_FAILED : __real_mmap(at, size, access, flags, fd, offset);
}
int __real_fstat(int fd, struct stat* found);
int __wrap_fstat(int fd, struct stat* found) {
  return is_next("fstat", EIO) ? -1 : __real_fstat(fd, found);
}
int __real_lstat(const char* path, struct stat* found);
int __wrap_lstat(const char* path, struct stat* found) {
  return is_next("lstat", EIO) ? -1 : __real_lstat(path, found);
}
int __real_fstatfs(int fd, struct statfs* found);
int __wrap_fstatfs(int fd, struct statfs* found) {
  return is_next("fstatfs", EIO) ? -1 : __real_fstatfs(fd, found);
}
int __real_memfd_create(const char* name, unsigned flags);
int __wrap_memfd_create(const char* name, unsigned flags) {
  return is_next("memfd_create", EMFILE) ? -1 : __real_memfd_create(name, flags);
}
int __real_ftruncate(int fd, off_t size);
int __wrap_ftruncate(int fd, off_t size) {
  return is_next("ftruncate", ENOSPC) ? -1 : __real_ftruncate(fd, size);
}
int __real_madvise(void* at, size_t size, int advice);
int __wrap_madvise(void* at, size_t size, int advice) {
  return is_next("madvise", ENOMEM) ? -1 : __real_madvise(at, size, advice);
}
ssize_t __real_preadv(int fd, const struct iovec* pieces, int count, off_t offset);
ssize_t __wrap_preadv(int fd, const struct iovec* pieces, int count, off_t offset) {
  return is_next("preadv", EIO) ? -1 : __real_preadv(fd, pieces, count, offset);
}
ssize_t __real_pwritev(int fd, const struct iovec* pieces, int count, off_t offset);
ssize_t __wrap_pwritev(int fd, const struct iovec* pieces, int count, off_t offset) {
  return is_next("pwritev", ENOSPC) ? -1 : __real_pwritev(fd, pieces, count, offset);
}

}  // extern "C"

namespace cairn::testing {
namespace {

class AgentCallsTest : public ::testing::Test {
 protected:
  AgentCallsTest() : rig_({.options = options()}) {}
  ~AgentCallsTest() override { plan().n = 0; }

  BlockManagerOptions options() const {
    BlockManagerOptions options;
    options.import_folders = {folder_.path()};
    return options;
  }
  EngineMemories& engine_memories() { return rig_.manager->engine_memories(); }

  // False if it failed. A failure must have a code and a message.
  template <class T>
  static bool went_well(const Result<T>& result) {
    if (result) return true;
    EXPECT_NE(plan().failed.load(), nullptr) << result.error().detail;
    EXPECT_NE(result.error().code, ErrorCode::internal) << result.error().detail;
    EXPECT_FALSE(result.error().detail.empty());
    return false;
  }
  TransferStatus ended(TransferId id) {
    rig_.scheduler->wait_idle();
    TransferStatus status = rig_.manager->transfer(id).value();
    EXPECT_EQ(status.blocks_done + status.failures.size(), status.blocks_total);
    for (const auto& failure : status.failures) EXPECT_FALSE(failure.error.detail.empty());
    return status;
  }
  static bool has_failed(const TransferStatus& status, const BlockKey& name) {
    return std::ranges::any_of(status.failures,
                               [&](const auto& failure) { return failure.key == name; });
  }

  // Registers, loads, registers again, stores and ends.
  void live(const Engine& engine, const std::string& name, std::uint64_t first_stored) {
    const EngineMemoryConfig config = engine.config(name);
    if (!went_well(engine_memories().put(config, {.lease_ms = 1000}))) return;
    std::vector<BlockKey> asked;
    for (const BlockKey& one : keys(1, 6)) {
      if (!rig_.match(*cache_, {one}, 0).blocks.empty()) asked.push_back(one);
    }
    std::vector<std::uint32_t> blocks;
    for (std::uint32_t i = 0; i < asked.size(); ++i) blocks.push_back(i);
    const auto load = engine_memories().load(
        name, {}, {.cache = cache_, .memory = {}, .keys = asked, .blocks = blocks});
    if (went_well(load)) {
      const TransferStatus loaded = ended(*load);
      for (std::uint32_t i = 0; i < asked.size(); ++i) {
        if (has_failed(loaded, asked[i])) continue;
        EXPECT_EQ(engine.read(i), bytes_of(asked[i])) << "a wrong byte";
      }
    }
    // Refused if it cannot be identified as the same memory. It stays registered either way.
    if (went_well(engine_memories().put(engine.config(name), {.lease_ms = 1000}))) {
      EXPECT_EQ(engine_memories().list({}, true).size(), 1u);
    }
    std::uint64_t at = first_stored;
    for (const Tier tier : kTiers) {
      store(engine, name, at, tier);
      at += 2;
    }
    EXPECT_TRUE(engine_memories().find(name, {}, true));
    EXPECT_TRUE(engine_memories().remove(name, {}, true, [] {}));
  }
  void store(const Engine& engine, const std::string& name, std::uint64_t first, Tier tier) {
    EngineStoreRequest request;
    request.cache = cache_;
    request.keys = keys(first, 2);
    request.blocks = {8, 9};
    request.parents.resize(2);
    request.tier = tier;
    for (std::uint32_t i = 0; i < 2; ++i) engine.write(8 + i, bytes_of(key(first + i)));
    const auto id = engine_memories().store(name, std::move(request));
    if (!went_well(id)) return;
    const TransferStatus stored = ended(*id);
    for (const BlockKey& one : keys(first, 2)) {
      EXPECT_EQ(rig_.match(*cache_, {one}, 0).blocks.empty(), has_failed(stored, one));
    }
  }

  void expect_bytes_are_right() {
    for (const BlockKey& name : keys(1, 200)) {
      const auto bytes = rig_.read(*cache_, name);
      if (!bytes) continue;
      EXPECT_EQ(*bytes, bytes_of(name)) << "a wrong byte";
    }
  }
  // Mappings of engine memory in this process, the engine's own included.
  static std::size_t mappings(const std::string& of) {
    std::ifstream maps("/proc/self/maps");
    std::size_t found = 0;
    for (std::string line; std::getline(maps, line);) found += line.find(of) != std::string::npos;
    return found;
  }
  static std::size_t open_files(const std::string& of) {
    std::size_t found = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      const auto name = std::filesystem::read_symlink(entry.path(), gone).string();
      found += name.find(of) != std::string::npos;
    }
    return found;
  }

  const fakes::TempDir folder_;
  Rig rig_;
  std::shared_ptr<Cache> cache_;
};

TEST_F(AgentCallsTest, EveryFailedCallIsReportedAndLeaksNothing) {
  const Engine passed;
  const Engine named(folder_.path() / "kv");
  std::map<std::string, int> failures;
  std::uint64_t n = 1;
  for (;; ++n) {
    SCOPED_TRACE("call " + std::to_string(n) + " fails");
    ASSERT_LT(n, 1000u);
    auto created = rig_.manager->create_cache(
        small_cache({.device = 16, .pinned = 16, .disk = 32}, OffloadMode::never));
    ASSERT_TRUE(created);
    cache_ = created->cache;
    for (const Tier tier : kTiers) {
      ASSERT_TRUE(rig_.put(*cache_, {.keys = keys(1 + 2 * index_of(tier), 2), .tier = tier}));
    }
    plan().failed = nullptr;
    plan().calls = 0;
    plan().n = n;
    live(passed, "passed", 100);
    live(named, "named", 150);
    plan().n = 0;
    const char* const failed = plan().failed;
    if (failed != nullptr) ++failures[failed];

    plan().failed = nullptr;
    expect_bytes_are_right();
    EXPECT_EQ(engine_memories().stats().engine_memories, 0u);
    EXPECT_EQ(cache_->stats().leases, 0u);
    for (const Tier tier : kTiers) {
      EXPECT_EQ(count(*cache_, tier, SlotState::allocated), 0u);
      EXPECT_EQ(count(*cache_, tier, SlotState::committed), 0u);
    }
    for (const std::string of : {"memfd:engine", "/kv"}) {
      EXPECT_EQ(mappings(of), 1u) << of;
      EXPECT_EQ(open_files(of), 1u) << of;
    }
    // The next agents would lack anything that the last one leaked.
    live(passed, "next", 160);
    live(named, "next", 170);
    cache_.reset();
    ASSERT_TRUE(rig_.manager->drop_cache("test", true));
    if (failed == nullptr || HasFailure()) break;
  }
  for (const auto& [call, times] : failures) RecordProperty(call, times);
  RecordProperty("calls", std::to_string(n - 1));
  EXPECT_GT(failures["mmap"], 0);
  EXPECT_GT(failures["fcntl"], 0);
  EXPECT_GT(failures["preadv"] + failures["pwritev"], 0);
}

}  // namespace
}  // namespace cairn::testing
