#include "tests/conformance/importing_process.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "memory/cuda/cuda_runtime.hpp"
#include "memory/host/host_runtime.hpp"

extern char** environ;

namespace cairn::conformance {
namespace {

constexpr char kMode[] = "--import-memory";
constexpr int kHandedOver = 3;  // the descriptor's number in the other process
constexpr int kComplaints = 4;

template <class Value>
Value must(Result<Value> made) {
  if (!made) throw std::runtime_error(made.error().detail);
  return std::move(*made);
}

void work(std::span<char* const> arguments) {
  const std::string_view name = arguments[0];
  const bool on_device = std::string_view(arguments[1]) == "device";
  const std::uint64_t used_bytes = std::strtoull(arguments[4], nullptr, 10);
  const ExportedMemory memory{.kind = std::string_view(arguments[2]) == "cuda_vmm_fd"
                                          ? ExportedMemory::Kind::cuda_vmm_fd
                                          : ExportedMemory::Kind::shm,
                              .size_bytes = std::strtoull(arguments[3], nullptr, 10),
                              .file = std::make_shared<const FileDescriptor>(kHandedOver)};
  const auto runtime = must(name == "host" ? make_host_runtime({}) : make_cuda_runtime());
  const Region region = must(runtime->import_memory(
      memory, {.kind = on_device ? StorageKind::device : StorageKind::pinned}));
  const Region seen = must(runtime->allocate_pinned(used_bytes, {}));
  copy_now(*runtime, {seen.data(), region.data(), used_bytes});
  for (std::uint64_t at = 0; at < used_bytes; ++at) {
    if (seen.data()[at] != written_by(kExporter, at)) {
      throw std::runtime_error("byte " + std::to_string(at) + " is not the exporter's");
    }
    seen.data()[at] = written_by(kImporter, at);
  }
  copy_now(*runtime, {region.data(), seen.data(), used_bytes});
}

std::string read_all(int file) {
  std::string text;
  std::array<char, 4096> piece{};
  for (::ssize_t got; (got = ::read(file, piece.data(), piece.size())) > 0;) {
    text.append(piece.data(), static_cast<std::size_t>(got));
  }
  return text;
}

}  // namespace

std::byte written_by(int writer, std::uint64_t at) {
  return static_cast<std::byte>(at * 31 + (at >> 8) + static_cast<std::uint64_t>(writer) * 77);
}

void copy_now(DeviceRuntime& runtime, const MemoryCopy& copy) {
  const auto stream = must(runtime.create_stream(0));
  stream->copy({&copy, 1}).value();
  stream->record().value()->wait().value();
}

std::string import_elsewhere(const Importing& importing) {
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) return "no pipe";
  FileDescriptor reading(pipe[0]);
  FileDescriptor writing(pipe[1]);
  // Numbers that do not clash with those in the other process.
  const FileDescriptor memory(::fcntl(importing.memory.file->get(), F_DUPFD_CLOEXEC, 16));
  FileDescriptor complaints(::fcntl(writing.get(), F_DUPFD_CLOEXEC, 16));
  std::vector<std::string> words = {"conformance_test",
                                    kMode,
                                    importing.runtime,
                                    std::string(to_string(importing.kind)),
                                    std::string(to_string(importing.memory.kind)),
                                    std::to_string(importing.memory.size_bytes),
                                    std::to_string(importing.used_bytes)};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, memory.get(), kHandedOver);
  ::posix_spawn_file_actions_adddup2(&actions, complaints.get(), kComplaints);
  ::pid_t child = -1;
  const int spawned =
      ::posix_spawn(&child, "/proc/self/exe", &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (spawned != 0) return std::string("posix_spawn: ") + std::strerror(spawned);
  writing.reset();
  complaints.reset();
  const std::string complaint = read_all(reading.get());
  int status = -1;
  ::waitpid(child, &status, 0);
  if (status == 0) return "";
  return "status " + std::to_string(status) + ": " + complaint;
}

bool is_importing_process(int argc, char** argv) {
  return argc == 7 && std::string_view(argv[1]) == kMode;
}

int run_importing_process(std::span<char* const> arguments) {
  try {
    work(arguments);
    return 0;
  } catch (const std::exception& failure) {
    const std::string what = failure.what();
    static_cast<void>(::write(kComplaints, what.data(), what.size()) < 0);
    return 1;
  }
}

}  // namespace cairn::conformance
