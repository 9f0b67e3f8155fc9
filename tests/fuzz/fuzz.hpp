#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string_view>

// What a fuzz target defines. Linked with libFuzzer by `./run fuzz`; with corpus_main.cpp, which
// replays the corpus, by every other build.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace cairn::fuzz {

// A finding, unlike a refused input.
inline void must(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "finding: %s\n", what);
  std::abort();
}

// An input cut up from its front.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size)
      : rest_(reinterpret_cast<const std::byte*>(data), size) {}

  // 0 where nothing is left.
  std::uint8_t byte() {
    if (rest_.empty()) return 0;
    const auto value = std::to_integer<std::uint8_t>(rest_.front());
    rest_ = rest_.subspan(1);
    return value;
  }
  std::span<const std::byte> rest() const { return rest_; }
  std::string_view text() const {
    return {reinterpret_cast<const char*>(rest_.data()), rest_.size()};
  }

 private:
  std::span<const std::byte> rest_;
};

}  // namespace cairn::fuzz
