#include "memory/host/available_memory.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <sstream>

namespace cairn {
namespace {

constexpr std::uint64_t kUnknown = std::numeric_limits<std::uint64_t>::max();
// Longer than the part of either file up to the number, and than most files.
constexpr std::size_t kReadBytes = 8192;

FileDescriptor open_for_reading(const std::string& path) {
  return FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
}

// The kernel generates such a file for each read from its start.
std::istringstream text_of(const FileDescriptor& file) {
  std::array<char, kReadBytes> text;
  const ::ssize_t size = ::pread(file.get(), text.data(), text.size(), 0);
  return std::istringstream(
      std::string(text.data(), size > 0 ? static_cast<std::size_t>(size) : 0));
}

// The number after `name` in a file of lines "name number [unit]".
std::uint64_t number_in(const FileDescriptor& file, const std::string& name) {
  std::istringstream text = text_of(file);
  for (std::string word; text >> word;) {
    std::uint64_t number = 0;
    if (word == name && text >> number) return number;
    text.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return kUnknown;
}

// A file that is one number; "max" is none.
std::uint64_t number_in(const FileDescriptor& file) {
  std::istringstream text = text_of(file);
  std::uint64_t number = 0;
  return text >> number ? number : kUnknown;
}

// "0::/path" for version 2 of control groups.
std::string group_in(const std::string& path) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::/")) return line.substr(3);
  }
  return "/";
}

}  // namespace

AvailableMemory::AvailableMemory(const Files& files) : machine_(open_for_reading(files.machine)) {
  for (std::string group = group_in(files.own_group); true; group.resize(group.rfind('/'))) {
    const std::string folder = files.groups + group;
    FileDescriptor most = open_for_reading(folder + "/memory.max");
    if (most) {
      groups_.push_back({.most = std::move(most),
                         .used = open_for_reading(folder + "/memory.current"),
                         .statistics = open_for_reading(folder + "/memory.stat")});
    }
    if (group.find('/') == std::string::npos) break;
  }
}

std::uint64_t AvailableMemory::bytes() const {
  const std::uint64_t machine_kib = number_in(machine_, "MemAvailable:");
  std::uint64_t available = machine_kib == kUnknown ? kUnknown : machine_kib * 1024;
  for (const Group& group : groups_) {
    const std::uint64_t most = number_in(group.most);
    const std::uint64_t used = number_in(group.used);
    if (most == kUnknown || used == kUnknown) continue;
    const std::uint64_t files = number_in(group.statistics, "inactive_file");
    const std::uint64_t held = used - std::min(used, files == kUnknown ? 0 : files);
    available = std::min(available, most - std::min(most, held));
  }
  return available;
}

}  // namespace cairn
