#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/file_descriptor.hpp"

namespace cairn {

// What this process may take before others are pushed out: of the machine and of the control
// groups it runs in (version 2), whichever is least. Its files are opened once, so that it neither
// takes a descriptor from a process that has few left nor is blind where there is none.
//
// Thread-safe.
class AvailableMemory {
 public:
  struct Files {
    std::string machine = "/proc/meminfo";
    std::string own_group = "/proc/self/cgroup";
    std::string groups = "/sys/fs/cgroup";
  };

  explicit AvailableMemory(const Files& files);
  AvailableMemory() : AvailableMemory(Files{}) {}

  // The largest number where neither is told.
  std::uint64_t bytes() const;

 private:
  struct Group {
    FileDescriptor most, used, statistics;
  };

  FileDescriptor machine_;
  std::vector<Group> groups_;  // the process' own first; each bounds those before it
};

}  // namespace cairn
