#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "memory/device_runtime.hpp"
#include "memory/exported_memory.hpp"

namespace cairn::conformance {

// What one side writes for the other, told apart by `writer`.
std::byte written_by(int writer, std::uint64_t at);
inline constexpr int kExporter = 1;
inline constexpr int kImporter = 2;

// Copies between two runs of bytes, and returns when they are there.
void copy_now(DeviceRuntime& runtime, const MemoryCopy& copy);

// Another process, this same program, that imports memory by its descriptor, finds what the
// exporter wrote in its first `used_bytes`, and writes what is its own over it.
struct Importing {
  std::string runtime;
  StorageKind kind = StorageKind::device;
  const ExportedMemory& memory;
  std::uint64_t used_bytes = 0;
};
// What it complained of; empty where all went well.
std::string import_elsewhere(const Importing& importing);

// The main() of that process: nothing where the program was not started as one.
bool is_importing_process(int argc, char** argv);
int run_importing_process(std::span<char* const> arguments);

}  // namespace cairn::conformance
