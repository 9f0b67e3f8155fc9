#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/result.hpp"

// zstd, a frame at a time, in buffers of a fixed size: what a frame takes in memory does not grow
// with the block. Not thread-safe.
namespace cairn {

class FrameCompressor {
 public:
  FrameCompressor();
  ~FrameCompressor();
  // The next frame holds so many bytes.
  void begin(std::uint64_t size_bytes);
  struct Step {
    std::size_t taken = 0;
    std::span<const std::byte> made;  // valid until the next call
    bool done = false;                // `last`: the frame is whole
  };
  // Takes of `in` what it can. To be called again with the rest until all is taken; with `last`
  // until done.
  Result<Step> step(std::span<const std::byte> in, bool last);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class FrameDecompressor {
 public:
  FrameDecompressor();
  ~FrameDecompressor();
  void begin();
  struct Step {
    std::size_t taken = 0;
    std::size_t made = 0;
    bool done = false;  // the frame is at its end
  };
  // broken_snapshot where the bytes are no frame, or one that wants more memory than kMaxWindow.
  Result<Step> step(std::span<const std::byte> in, std::span<std::byte> out);

  static constexpr int kMaxWindowLog = 23;  // 8 MiB

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cairn
