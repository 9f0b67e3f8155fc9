#include "tests/simulation/files.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <vector>

#include "base/assert.hpp"
#include "base/file_descriptor.hpp"
#include "transport/io/slot_file_label.hpp"

namespace cairn::sim {

namespace fs = std::filesystem;

fs::path folder_for_runs() {
  const fs::path memory = "/dev/shm";
  std::error_code error;
  return fs::is_directory(memory, error) ? memory : fs::temp_directory_path();
}

void remove_index(const fs::path& folder) {
  std::vector<fs::path> index;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().filename().native().find('~') != std::string::npos) {
      index.push_back(entry.path());
    }
  }
  for (const fs::path& path : index) fs::remove(path);
}

void rot_a_slot(const fs::path& folder, Random& random) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const bool is_slot_file =
        entry.is_regular_file() && entry.path().filename().native().find('~') == std::string::npos;
    if (!is_slot_file || entry.file_size() <= kSlotFileLabelBytes) continue;
    const FileDescriptor file(::open(entry.path().c_str(), O_RDWR | O_CLOEXEC));
    const auto at = static_cast<::off_t>(kSlotFileLabelBytes +
                                         random.below(entry.file_size() - kSlotFileLabelBytes));
    std::uint8_t byte = 0;
    if (::pread(file.get(), &byte, 1, at) != 1) continue;
    byte ^= static_cast<std::uint8_t>(1 + random.below(255));
    CAIRN_ASSERT(::pwrite(file.get(), &byte, 1, at) == 1, "a file of the simulation is gone");
  }
}

}  // namespace cairn::sim
