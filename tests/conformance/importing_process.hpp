#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "memory/device_runtime.hpp"
#include "memory/exported_memory.hpp"

namespace cairn::conformance {

// The byte that a side writes at `at`; it differs by `writer`.
std::byte written_by(int writer, std::uint64_t at);
inline constexpr int kExporter = 1;
inline constexpr int kImporter = 2;

// Copies, and waits for the end of the copy.
void copy_now(DeviceRuntime& runtime, const MemoryCopy& copy);

// Another process of this program. It imports memory by its descriptor, checks the exporter's bytes
// in the first `used_bytes`, and overwrites them with its own.
struct Importing {
  std::string runtime;
  StorageKind kind = StorageKind::device;
  const ExportedMemory& memory;
  std::uint64_t used_bytes = 0;
};
// Returns the process's error; empty if it succeeded.
std::string import_elsewhere(const Importing& importing);

// is_importing_process(): this process was started as that one. run_importing_process() is its
// main().
bool is_importing_process(int argc, char** argv);
int run_importing_process(std::span<char* const> arguments);

}  // namespace cairn::conformance
