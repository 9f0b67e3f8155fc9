// Tests of every DeviceRuntime: memory that several processes map.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "memory/exported_memory.hpp"
#include "tests/conformance/runtime_case.hpp"
#include "tests/fakes/temp_dir.hpp"

namespace cairn::conformance {
namespace {

constexpr std::uint64_t kSharedBytes = 3 * 4096 + 512;

class SharedMemoryTest : public RuntimeTest {
 protected:
  std::string make_file(const std::string& name, std::uint64_t size_bytes, char fill) {
    const std::string path = (folder_.path() / name).string();
    std::ofstream(path) << std::string(size_bytes, fill);
    return path;
  }
  static ExportedMemory as_file(const std::string& path, std::uint64_t size_bytes = kSharedBytes) {
    return {.kind = ExportedMemory::Kind::file, .path = path, .size_bytes = size_bytes};
  }
  void copy(std::byte* to, const std::byte* from, std::uint64_t size_bytes) {
    auto stream = runtime_->create_stream(0).value();
    const MemoryCopy one{to, from, size_bytes};
    stream->copy({&one, 1}).value();
    stream->record().value()->wait().value();
  }

  const fakes::TempDir folder_;
};

TEST_P(SharedMemoryTest, OthersMapPinnedMemoryAndCannotTruncateIt) {
  const Region pinned = runtime_->allocate_pinned(kSharedBytes, {}).value();
  const ExportedMemory memory = pinned.share().value();
  EXPECT_EQ(memory.kind, ExportedMemory::Kind::shm);
  EXPECT_EQ(memory.size_bytes, kSharedBytes);
  EXPECT_EQ(memory.offset_bytes, 0u);
  const int file = ::open(memory.path.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(file, 0);
  struct stat found {};
  ASSERT_EQ(::fstat(file, &found), 0);
  EXPECT_EQ(found.st_ino, memory.inode);
  EXPECT_EQ(found.st_mode & 07777, 0600u);
  EXPECT_EQ(::ftruncate(file, 0), -1);
  EXPECT_EQ(errno, EPERM);
  void* const mapped = ::mmap(nullptr, kSharedBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  std::memset(mapped, 0x5A, kSharedBytes);
  EXPECT_EQ(pinned.data()[kSharedBytes - 1], std::byte{0x5A});
  ::munmap(mapped, kSharedBytes);
  ::close(file);
}

// A tier that grows: others find the new memory behind the old in one file, and it leaves nothing.
TEST_P(SharedMemoryTest, PinnedMemoryFollowsOtherMemoryInItsFile) {
  constexpr std::uint64_t kFirstBytes = 2 * 4096;
  const Region first = runtime_->allocate_pinned(kFirstBytes, {}).value();
  std::memset(first.data(), 0x11, kFirstBytes);
  const SharedFilePlace place{.fd = first.shared_fd(), .offset_bytes = kFirstBytes};
  for (const int fill : {0x22, 0x33}) {
    const Region second = runtime_->allocate_pinned(kSharedBytes, {.place = place}).value();
    EXPECT_EQ(second.data()[0], std::byte{0});
    EXPECT_EQ(second.data()[kSharedBytes - 1], std::byte{0});
    std::memset(second.data(), fill, kSharedBytes);
    const ExportedMemory memory = second.share().value();
    EXPECT_EQ(memory.inode, first.share().value().inode);
    EXPECT_EQ(memory.offset_bytes, kFirstBytes);
    std::vector<char> in_file(kFirstBytes + kSharedBytes);
    ASSERT_EQ(::pread(first.shared_fd(), in_file.data(), in_file.size(), 0),
              static_cast<::ssize_t>(in_file.size()));
    EXPECT_EQ(std::ranges::count(in_file, 0x11), kFirstBytes);
    EXPECT_EQ(std::ranges::count(in_file, fill), kSharedBytes);
  }
  EXPECT_EQ(first.data()[kFirstBytes - 1], std::byte{0x11});
}

TEST_P(SharedMemoryTest, DeviceMemoryNamesItsHandle) {
  const Region device = runtime_->allocate_device(kSharedBytes, {}).value();
  const auto memory = device.share();
  ASSERT_TRUE(memory.has_value()) << memory.error().detail;
  EXPECT_EQ(memory->size_bytes, kSharedBytes);
  if (runtime_->name() == "host") {
    EXPECT_EQ(memory->kind, ExportedMemory::Kind::shm);
  } else {
    EXPECT_EQ(memory->kind, ExportedMemory::Kind::cuda_ipc);
    EXPECT_EQ(memory->handle.size(), kCudaIpcHandleBytes);
    // CUDA does not open memory in the process that allocated it.
    EXPECT_EQ(runtime_->import_memory(*memory, {.kind = StorageKind::device}).error().code,
              ErrorCode::impossible);
    EXPECT_EQ(runtime_->lost(), std::nullopt);
  }
}

TEST_P(SharedMemoryTest, ImportsAFileAsPinnedMemory) {
  const std::string path = make_file("memory", kSharedBytes, 'a');
  const Region device = runtime_->allocate_device(kSharedBytes, {}).value();
  {
    const Region imported =
        runtime_->import_memory(as_file(path), {.kind = StorageKind::pinned}).value();
    EXPECT_EQ(imported.kind(), StorageKind::pinned);
    EXPECT_EQ(imported.size_bytes(), kSharedBytes);
    EXPECT_EQ(imported.share().value(), as_file(path));
    // Through the device and back to another place of the file.
    copy(device.data(), imported.data(), kSharedBytes);
    std::memset(imported.data(), 'b', kSharedBytes);
    copy(imported.data() + 4096, device.data(), 4096);
  }
  std::ifstream file(path);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  EXPECT_EQ(bytes, std::string(4096, 'b') + std::string(4096, 'a') +
                       std::string(kSharedBytes - 8192, 'b'));
}

TEST_P(SharedMemoryTest, RefusesImpossibleImports) {
  const auto code = [&](const ExportedMemory& memory, DeviceRuntime::ImportOptions options = {}) {
    auto imported = runtime_->import_memory(memory, options);
    return imported ? ErrorCode::internal : imported.error().code;
  };
  const std::string path = make_file("memory", kSharedBytes, 'a');
  EXPECT_EQ(code(as_file(path, kSharedBytes + 1)), ErrorCode::impossible);
  EXPECT_EQ(code(as_file(path, 0)), ErrorCode::out_of_range);
  EXPECT_EQ(code(as_file(path + "x")), ErrorCode::not_found);
  EXPECT_EQ(code(as_file(folder_.path().string())), ErrorCode::impossible);
  std::filesystem::create_symlink(path, folder_.path() / "link");
  EXPECT_EQ(code(as_file((folder_.path() / "link").string())), ErrorCode::impossible);
  EXPECT_EQ(code(as_file(path), {.device_id = 99}), ErrorCode::out_of_range);
  ExportedMemory other = as_file(path);
  other.inode = 1;
  EXPECT_EQ(code(other), ErrorCode::state_conflict);
  const ExportedMemory handle{.kind = ExportedMemory::Kind::cuda_ipc,
                              .handle = std::string(kCudaIpcHandleBytes, 'x'),
                              .size_bytes = kSharedBytes};
  EXPECT_EQ(code(handle), ErrorCode::impossible);
  EXPECT_EQ(code(handle, {.kind = StorageKind::device}), ErrorCode::impossible);
  EXPECT_EQ(runtime_->lost(), std::nullopt);
}

TEST_P(SharedMemoryTest, ClaimsBytesOfAFileOnce) {
  const std::string path = make_file("memory", kSharedBytes, 'a');
  const ExportedMemory memory = as_file(path);
  auto first = std::make_unique<Region>(runtime_->import_memory(memory, {}).value());
  const Region second = runtime_->import_memory(memory, {}).value();
  const std::vector<RegionView::Part> low = {{.offset_bytes = 0, .size_bytes = 4096}};
  const std::vector<RegionView::Part> high = {{.offset_bytes = 4096, .size_bytes = 4096}};
  const std::vector<RegionView::Part> across = {{.offset_bytes = 4095, .size_bytes = 1}};
  EXPECT_TRUE(claim_exported_memory(memory, first->shared_fd(), low).has_value());
  EXPECT_EQ(claim_exported_memory(memory, second.shared_fd(), across).error().code,
            ErrorCode::state_conflict);
  EXPECT_TRUE(claim_exported_memory(memory, second.shared_fd(), high).has_value());
  first.reset();
  EXPECT_TRUE(claim_exported_memory(memory, second.shared_fd(), across).has_value());
}

TEST_P(SharedMemoryTest, ChecksThatAPathStillLeadsToTheFile) {
  const std::string path = make_file("memory", kSharedBytes, 'a');
  const ExportedMemory memory = as_file(path);
  const Region imported = runtime_->import_memory(memory, {}).value();
  EXPECT_TRUE(check_still_exported(memory, imported.shared_fd()).has_value());
  std::filesystem::rename(path, path + ".old");
  EXPECT_EQ(check_still_exported(memory, imported.shared_fd()).error().code,
            ErrorCode::state_conflict);
  make_file("memory", kSharedBytes, 'b');
  EXPECT_EQ(check_still_exported(memory, imported.shared_fd()).error().code,
            ErrorCode::state_conflict);
  EXPECT_EQ(imported.data()[0], std::byte{'a'});
}

TEST_P(SharedMemoryTest, KeepsPrivateMemoryPrivate) {
  EXPECT_EQ(Region().share().error().code, ErrorCode::impossible);
  const Region system = Region::system(kSharedBytes).value();
  EXPECT_EQ(system.share().error().code, ErrorCode::impossible);
}

INSTANTIATE_TEST_SUITE_P(Runtimes, SharedMemoryTest, testing::ValuesIn(runtime_cases()),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace cairn::conformance
