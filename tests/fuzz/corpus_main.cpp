// Gives a target every file of its corpus, and every prefix of each file, as from a connection that
// breaks off.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "tests/fuzz/fuzz.hpp"

namespace {

// The most prefixes of one file.
constexpr std::size_t kMaxCuts = 512;

std::size_t replay(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  const std::size_t step = bytes.size() / kMaxCuts + 1;
  std::size_t runs = 0;
  for (std::size_t size = 0; size < bytes.size(); size += step, ++runs) {
    // A separate copy, so that a sanitizer sees a read past its end.
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
