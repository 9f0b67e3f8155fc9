// Tests of every DeviceRuntime: memory that another process opens by a descriptor.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "memory/exported_memory.hpp"
#include "tests/conformance/importing_process.hpp"
#include "tests/conformance/runtime_case.hpp"
#include "tests/fakes/temp_dir.hpp"

namespace cairn::conformance {
namespace {

using testing::HasSubstr;
using Kind = ExportedMemory::Kind;
using File = std::shared_ptr<const FileDescriptor>;

constexpr std::uint64_t kBytes = 3 * 4096 + 512;
constexpr DeviceRuntime::DeviceOptions kByDescriptor{.by_descriptor = true};

File own(int fd) { return std::make_shared<const FileDescriptor>(fd); }

// A memfd like an engine's.
File memfd(std::uint64_t size_bytes = kBytes, int seals = F_SEAL_SHRINK) {
  File file = own(::memfd_create("engine", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(file->get(), static_cast<::off_t>(size_bytes)), 0);
  if (seals != 0) {
    EXPECT_EQ(::fcntl(file->get(), F_ADD_SEALS, seals), 0);
  }
  return file;
}

ExportedMemory as_shm(File file, std::uint64_t size_bytes = kBytes) {
  return {.kind = Kind::shm, .size_bytes = size_bytes, .file = std::move(file)};
}

class DescriptorTest : public RuntimeTest {
 protected:
  bool is_host() const { return runtime_->name() == "host"; }
  // Device memory; nullopt if the device has none of the kind, and the test skips.
  std::optional<Region> on_device(std::uint64_t size_bytes = kBytes) {
    auto made = runtime_->allocate_device(size_bytes, kByDescriptor);
    if (made) return std::move(*made);
    EXPECT_FALSE(fake_ || made.error().code != ErrorCode::impossible) << made.error().detail;
    return std::nullopt;
  }
  Region filled(std::uint64_t size_bytes, int writer) {
    Region host = runtime_->allocate_pinned(size_bytes, {}).value();
    for (std::uint64_t at = 0; at < size_bytes; ++at) host.data()[at] = written_by(writer, at);
    return host;
  }
  // A copy of any memory that the CPU can read.
  Region seen(const Region& memory) {
    Region host = runtime_->allocate_pinned(memory.size_bytes(), {}).value();
    copy_now(*runtime_, {host.data(), memory.data(), memory.size_bytes()});
    return host;
  }
  static bool is_by(int writer, const std::byte* bytes, std::uint64_t size_bytes) {
    for (std::uint64_t at = 0; at < size_bytes; ++at) {
      if (bytes[at] != written_by(writer, at)) return false;
    }
    return true;
  }
  // Expects that the import fails without losing the device, and returns its error.
  Error refused(const ExportedMemory& memory, StorageKind kind) {
    auto imported = runtime_->import_memory(memory, {.kind = kind});
    EXPECT_FALSE(imported.has_value());
    EXPECT_EQ(runtime_->lost(), std::nullopt);
    return imported ? Error{ErrorCode::internal, "it was taken"} : imported.error();
  }

  const fakes::TempDir folder_;
};

TEST_P(DescriptorTest, AnotherProcessReadsAndWritesDeviceMemory) {
  const auto region = on_device();
  if (!region) GTEST_SKIP() << "the device has no such memory";
  copy_now(*runtime_, {region->data(), filled(kBytes, kExporter).data(), kBytes});
  const ExportedMemory memory = region->share().value();
  EXPECT_EQ(memory.kind, is_host() ? Kind::shm : Kind::cuda_vmm_fd);
  EXPECT_EQ(import_elsewhere({.runtime = std::string(runtime_->name()),
                              .kind = StorageKind::device,
                              .memory = memory,
                              .used_bytes = kBytes}),
            "");
  EXPECT_TRUE(is_by(kImporter, seen(*region).data(), kBytes));
}

TEST_P(DescriptorTest, AnotherProcessReadsAndWritesPinnedMemory) {
  const Region region = filled(kBytes, kExporter);
  ExportedMemory memory = region.share().value();
  memory.path = "/where/another/PID/namespace/sees/nothing";
  EXPECT_EQ(import_elsewhere({.runtime = std::string(runtime_->name()),
                              .kind = StorageKind::pinned,
                              .memory = memory,
                              .used_bytes = kBytes}),
            "");
  EXPECT_TRUE(is_by(kImporter, region.data(), kBytes));
}

TEST_P(DescriptorTest, ShareDuplicatesTheDescriptor) {
  const Region pinned = runtime_->allocate_pinned(kBytes, {}).value();
  const auto device = on_device();
  for (const Region* region : {&pinned, device ? &*device : &pinned}) {
    const ExportedMemory first = region->share().value();
    const ExportedMemory second = region->share().value();
    ASSERT_TRUE(first.file && second.file);
    EXPECT_NE(first.file->get(), second.file->get());
    EXPECT_EQ(::fcntl(first.file->get(), F_GETFD), FD_CLOEXEC);
    EXPECT_EQ(first, second);
  }
}

TEST_P(DescriptorTest, ADescriptorKeepsMemoryAlive) {
  auto region = on_device();
  if (!region) GTEST_SKIP() << "the device has no such memory";
  copy_now(*runtime_, {region->data(), filled(kBytes, kExporter).data(), kBytes});
  const ExportedMemory memory = region->share().value();
  region.reset();
  const Region again = runtime_->import_memory(memory, {.kind = StorageKind::device}).value();
  EXPECT_EQ(again.kind(), StorageKind::device);
  EXPECT_EQ(again.device_id(), 0);
  EXPECT_EQ(again.share().value(), memory);
  EXPECT_TRUE(is_by(kExporter, seen(again).data(), kBytes));
}

TEST_P(DescriptorTest, SharesWholeZeroedUnits) {
  const auto region = on_device(4097);
  if (!region) GTEST_SKIP() << "the device has no such memory";
  EXPECT_EQ(region->size_bytes(), 4097u);
  const ExportedMemory memory = region->share().value();
  EXPECT_GE(memory.size_bytes, 4097u);
  const Region whole = runtime_->import_memory(memory, {.kind = StorageKind::device}).value();
  EXPECT_EQ(whole.size_bytes(), memory.size_bytes);
  const Region bytes = seen(whole);
  EXPECT_TRUE(std::all_of(bytes.data(), bytes.data() + memory.size_bytes,
                          [](std::byte b) { return b == std::byte{0}; }));
}

TEST_P(DescriptorTest, SupportsEveryFormOfACopyFromEveryDevice) {
  constexpr std::uint64_t kPiece = 512;
  constexpr std::uint64_t kPieces = 16;
  const auto region = on_device(kPiece * kPieces);
  if (!region) GTEST_SKIP() << "the device has no such memory";
  const Region source = filled(kPiece * kPieces, kExporter);
  for (const DeviceInfo& device : runtime_->devices()) {
    const Region beside =
        runtime_->allocate_device(kPiece * kPieces, {.device_id = device.id}).value();
    const auto stream = runtime_->create_stream(device.id).value();
    for (const CopyForm form :
         {CopyForm::loop, CopyForm::batch, CopyForm::rows, CopyForm::kernel}) {
      const Region back = runtime_->allocate_pinned(kPiece * kPieces, {}).value();
      const auto issue = [&](std::byte* to, const std::byte* from) {
        std::vector<MemoryCopy> pieces;
        for (std::uint64_t i = 0; i < kPieces; ++i) {
          pieces.push_back({to + i * kPiece, from + i * kPiece, kPiece});
        }
        stream->copy(pieces, form).value();
      };
      issue(region->data(), source.data());
      issue(beside.data(), region->data());
      stream->zero(region->data(), kPiece * kPieces).value();
      issue(region->data(), beside.data());
      issue(back.data(), region->data());
      stream->record().value()->wait().value();
      EXPECT_TRUE(is_by(kExporter, back.data(), kPiece * kPieces))
          << "device " << device.id << ", " << to_string(form);
    }
  }
}

TEST_P(DescriptorTest, ImportsAnEnginesMemfd) {
  const File file = memfd();
  const Region region = runtime_->import_memory(as_shm(file), {}).value();
  EXPECT_EQ(region.kind(), StorageKind::pinned);
  std::memset(region.data(), 'x', kBytes);
  std::string bytes(kBytes, '\0');
  ASSERT_EQ(::pread(file->get(), bytes.data(), kBytes, 0), static_cast<::ssize_t>(kBytes));
  EXPECT_EQ(bytes, std::string(kBytes, 'x'));
  EXPECT_EQ(region.share().value().file, file);
}

TEST_P(DescriptorTest, ErrorSaysHowToSealAMemfd) {
  const auto detail = [&](int seals) {
    const Error error = refused(as_shm(memfd(kBytes, seals)), StorageKind::pinned);
    EXPECT_EQ(error.code, ErrorCode::impossible);
    return error.detail;
  };
  EXPECT_THAT(detail(0), HasSubstr("seal it with F_SEAL_SHRINK"));
  EXPECT_THAT(detail(F_SEAL_GROW), HasSubstr("seal it with F_SEAL_SHRINK"));
  EXPECT_THAT(detail(F_SEAL_SHRINK | F_SEAL_WRITE), HasSubstr("against writing"));
  EXPECT_THAT(detail(F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE), HasSubstr("against writing"));
}

TEST_P(DescriptorTest, RefusesADescriptorThatIsNotMemory) {
  const auto code = [&](File file) {
    return refused(as_shm(std::move(file)), StorageKind::pinned).code;
  };
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  EXPECT_EQ(code(own(ends[0])), ErrorCode::impossible);
  EXPECT_EQ(code(own(ends[1])), ErrorCode::impossible);
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  EXPECT_EQ(code(own(ends[0])), ErrorCode::impossible);
  EXPECT_EQ(code(own(ends[1])), ErrorCode::impossible);
  const std::string folder = folder_.path().string();
  EXPECT_EQ(code(own(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC))),
            ErrorCode::impossible);
  const std::string path = folder + "/file";
  std::ofstream(path) << std::string(kBytes, 'a');
  EXPECT_EQ(code(own(::open(path.c_str(), O_RDWR | O_CLOEXEC))), ErrorCode::impossible);
  EXPECT_EQ(code(own(::open("/dev/zero", O_RDWR | O_CLOEXEC))), ErrorCode::impossible);
  // A file is imported by its path, not by a descriptor.
  EXPECT_EQ(refused({.kind = Kind::file, .path = path, .size_bytes = kBytes, .file = memfd()},
                    StorageKind::pinned)
                .code,
            ErrorCode::impossible);
}

TEST_P(DescriptorTest, RefusesADescriptorWithoutEnoughAccess) {
  const File file = memfd();
  const std::string path = "/proc/self/fd/" + std::to_string(file->get());
  for (const int flags : {O_RDONLY, O_WRONLY, O_PATH}) {
    const File lesser = own(::open(path.c_str(), flags | O_CLOEXEC));
    ASSERT_TRUE(*lesser);
    EXPECT_EQ(refused(as_shm(lesser), StorageKind::pinned).code, ErrorCode::impossible) << flags;
  }
  EXPECT_EQ(refused(as_shm(file, kBytes + 1), StorageKind::pinned).code, ErrorCode::impossible);
  EXPECT_EQ(refused(as_shm(file, 0), StorageKind::pinned).code, ErrorCode::out_of_range);
  ExportedMemory other = as_shm(file);
  other.inode = 1;
  EXPECT_EQ(refused(other, StorageKind::pinned).code, ErrorCode::state_conflict);
}

TEST_P(DescriptorTest, ReportsAMissingDescriptor) {
  const Error shm = refused(as_shm(nullptr), StorageKind::pinned);
  EXPECT_EQ(shm.code, ErrorCode::not_found);
  EXPECT_THAT(shm.detail, HasSubstr("passed over the Unix socket with each request"));
  EXPECT_EQ(check_still_exported(as_shm(nullptr), memfd()->get()).error().code,
            ErrorCode::not_found);
  const ExportedMemory vmm{.kind = Kind::cuda_vmm_fd, .size_bytes = std::uint64_t{2} << 20};
  EXPECT_EQ(refused(vmm, StorageKind::device).code,
            is_host() ? ErrorCode::impossible : ErrorCode::not_found);
  EXPECT_EQ(check_still_exported(vmm, -1).error().code, ErrorCode::not_found);
}

TEST_P(DescriptorTest, ClaimsBytesOfAMemfdOnce) {
  const File file = memfd();
  const ExportedMemory memory = as_shm(file);
  auto first = std::make_unique<Region>(runtime_->import_memory(memory, {}).value());
  const Region second = runtime_->import_memory(memory, {}).value();
  const std::vector<RegionView::Part> low = {{.offset_bytes = 0, .size_bytes = 4096}};
  const std::vector<RegionView::Part> across = {{.offset_bytes = 4095, .size_bytes = 1}};
  ASSERT_TRUE(claim_exported_memory(memory, first->shared_fd(), low).has_value());
  EXPECT_EQ(claim_exported_memory(memory, second.shared_fd(), across).error().code,
            ErrorCode::state_conflict);
  // The engine cannot unlock them through the descriptor that it has kept.
  struct flock all {};
  all.l_type = F_UNLCK;
  all.l_whence = SEEK_SET;
  ASSERT_EQ(::fcntl(file->get(), F_OFD_SETLK, &all), 0);
  EXPECT_TRUE(claim_exported_memory(memory, second.shared_fd(), across).has_error());
  first.reset();
  EXPECT_TRUE(claim_exported_memory(memory, second.shared_fd(), across).has_value());
}

TEST_P(DescriptorTest, ComparesTheFilesOfDescriptors) {
  const File file = memfd();
  const Region region = runtime_->import_memory(as_shm(file), {}).value();
  const File same = own(::fcntl(file->get(), F_DUPFD_CLOEXEC, 0));
  EXPECT_TRUE(check_still_exported(as_shm(same), region.shared_fd()).has_value());
  const Error other = check_still_exported(as_shm(memfd()), region.shared_fd()).error();
  EXPECT_EQ(other.code, ErrorCode::state_conflict);
  // Memory that cannot be compared counts as different. A handle is compared by its bytes.
  const ExportedMemory vmm{.kind = Kind::cuda_vmm_fd, .size_bytes = kBytes, .file = same};
  const Error unknown = check_still_exported(vmm, -1).error();
  EXPECT_EQ(unknown.code, ErrorCode::state_conflict);
  EXPECT_THAT(unknown.detail, HasSubstr("drop the cache first"));
  EXPECT_TRUE(check_still_exported({.kind = Kind::cuda_ipc}, -1).has_value());
  EXPECT_TRUE(claim_exported_memory(vmm, -1, {}).has_value());
}

TEST_P(DescriptorTest, RefusesADescriptorThatIsNotDeviceMemory) {
  const auto region = on_device();
  if (!region) GTEST_SKIP() << "the device has no such memory";
  if (is_host()) {
    const ExportedMemory vmm{.kind = Kind::cuda_vmm_fd, .size_bytes = kBytes, .file = memfd()};
    EXPECT_EQ(refused(vmm, StorageKind::device).code, ErrorCode::impossible);
    EXPECT_EQ(refused(vmm, StorageKind::pinned).code, ErrorCode::impossible);
    return;
  }
  const ExportedMemory memory = region->share().value();
  const auto changed = [&](auto change) {
    ExportedMemory other = memory;
    change(other);
    return refused(other, StorageKind::device);
  };
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const File pipe = own(ends[0]);
  const File other_end = own(ends[1]);
  for (const File& file : {memfd(memory.size_bytes), pipe, other_end}) {
    const Error error = changed([&](ExportedMemory& other) { other.file = file; });
    EXPECT_EQ(error.code, ErrorCode::impossible);
    EXPECT_THAT(error.detail, HasSubstr("cuMemImportFromShareableHandle"));
  }
  EXPECT_EQ(changed([](ExportedMemory& other) { other.size_bytes += 1; }).code,
            ErrorCode::impossible);
  const Error more = changed([](ExportedMemory& other) { other.size_bytes *= 2; });
  EXPECT_EQ(more.code, ErrorCode::impossible);
  EXPECT_THAT(more.detail, HasSubstr("cuMemMap"));
  EXPECT_EQ(changed([](ExportedMemory& other) { other.offset_bytes = 1; }).code,
            ErrorCode::impossible);
  EXPECT_EQ(refused(memory, StorageKind::pinned).code, ErrorCode::impossible);
  if (runtime_->devices().size() > 1) {
    const auto elsewhere =
        runtime_->import_memory(memory, {.kind = StorageKind::device, .device_id = 1});
    ASSERT_TRUE(elsewhere.has_error());
    EXPECT_EQ(elsewhere.error().code, ErrorCode::impossible);
    EXPECT_THAT(elsewhere.error().detail, HasSubstr("device 0, not on device 1"));
  }
  // The memory can still be imported.
  EXPECT_TRUE(runtime_->import_memory(memory, {.kind = StorageKind::device}).has_value());
}

INSTANTIATE_TEST_SUITE_P(Runtimes, DescriptorTest, testing::ValuesIn(runtime_cases()),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace cairn::conformance
