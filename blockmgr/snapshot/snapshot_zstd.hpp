#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/result.hpp"

// zstd, one frame at a time, in buffers of fixed size: memory use does not grow with the block. Not
// thread-safe.
namespace cairn {

class FrameCompressor {
 public:
  FrameCompressor();
  ~FrameCompressor();
  // Begins a frame of `size_bytes` bytes.
  void begin(std::uint64_t size_bytes);
  struct Step {
    std::size_t taken = 0;
    std::span<const std::byte> made;  // valid until the next call
    bool done = false;                // with `last`: the frame is complete
  };
  // Takes as much of `in` as it can. Call it again with the rest until all is taken; with `last`,
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
    bool done = false;  // the frame has ended
  };
  // broken_snapshot if the bytes are not a frame, or the frame needs a window above kMaxWindowLog.
  Result<Step> step(std::span<const std::byte> in, std::span<std::byte> out);

  static constexpr int kMaxWindowLog = 23;  // 8 MiB

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cairn
