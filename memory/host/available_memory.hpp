#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/file_descriptor.hpp"

namespace cairn {

// How much memory this process can take before others are pushed out: the least of the machine's
// and of its control groups' (version 2). Its files are opened once, so that it needs no descriptor
// from a process that has few left, and works even if there is none.
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

  // The largest number if neither says.
  std::uint64_t bytes() const;

 private:
  struct Group {
    FileDescriptor most, used, statistics;
  };

  FileDescriptor machine_;
  std::vector<Group> groups_;  // the process's own first; each bounds those before it
};

}  // namespace cairn
