// Gives a target every file of its corpus, and every beginning of each: what a connection that is
// cut would leave.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "tests/fuzz/fuzz.hpp"

namespace {

// Beginnings of long files are taken at this many places.
constexpr std::size_t kMaxCuts = 512;

std::size_t replay(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  const std::size_t step = bytes.size() / kMaxCuts + 1;
  std::size_t runs = 0;
  for (std::size_t size = 0; size < bytes.size(); size += step, ++runs) {
    // A copy of its own, so that a read past its end is seen.
    const std::vector<std::uint8_t> part(bytes.begin(),
                                         bytes.begin() + static_cast<std::ptrdiff_t>(size));
    LLVMFuzzerTestOneInput(part.data(), part.size());
  }
  const std::vector<std::uint8_t> whole(bytes.begin(), bytes.end());
  LLVMFuzzerTestOneInput(whole.data(), whole.size());
  return runs + 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t files = 0;
  std::size_t runs = 0;
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      if (!entry.is_regular_file()) continue;
      runs += replay(entry.path());
      ++files;
    }
  }
  std::printf("%zu files, %zu inputs\n", files, runs);
  return files == 0 ? 1 : 0;
}
