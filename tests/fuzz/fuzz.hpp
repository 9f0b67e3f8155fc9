#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string_view>

// Each fuzz target defines this function. `./run fuzz` links it with libFuzzer; other builds link
// it with corpus_main.cpp, which replays the corpus.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace cairn::fuzz {

// Reports a finding if `right` is false; a refused input is none.
inline void must(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "finding: %s\n", what);
  std::abort();
}

// An input that is consumed from the front.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size)
      : rest_(reinterpret_cast<const std::byte*>(data), size) {}

  // 0 at the end.
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
