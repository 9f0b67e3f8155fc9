#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.hpp"

// A smaller form of a block's bytes, from which they come back to the last bit. Version 1,
// little-endian and packed:
//   u32 magic "CRNP"; u8 version; u8 bytes of an element (its width); u16 zero
//   for each chunk of kPlaneBytes elements, the last one with the elements that are left:
//     for each plane, u32: its bytes here
//     the planes, one after another: plane i has byte i of each element. A plane of as many bytes
//     as elements is as it was; a shorter one is a frame of zstd.
//   the bytes after the last whole element
//
// Signs and exponents of neighbouring numbers are alike, mantissas are noise: apart from each
// other, the first shrink and the others cost nothing. Of SmolLM2's keys and values in bf16, 31%
// go.
namespace cairn {

// Whether bytes begin as encoded ones do, as far as their first kEncodedHeadBytes show.
inline constexpr std::size_t kEncodedHeadBytes = 8;
bool is_encoded(std::span<const std::byte> bytes);

// Of one plane in a chunk, which zstd codes with one table of some 80 bytes. Layers differ, so a
// larger one saves fewer bytes: of SmolLM2's keys and values in f16 13.0% with 24 KiB, 12.9% with
// 128 KiB. With a smaller one zstd is slower.
inline constexpr std::size_t kPlaneBytes = 24u << 10;
inline constexpr std::uint32_t kMaxElementBytes = 8;

// Encodes and decodes blocks. It keeps memory for as many as are coded at once: about 0.6 MiB
// for each. Thread-safe.
class PlaneCodec {
 public:
  PlaneCodec();
  ~PlaneCodec();

  struct Encoded {
    std::unique_ptr<std::byte[]> bytes = {};
    std::size_t size_bytes = 0;

    std::span<const std::byte> span() const { return {bytes.get(), size_bytes}; }
  };
  // nullopt unless the bytes become fewer by at least a hundredth. An element has 1, 2, 4 or 8
  // bytes.
  std::optional<Encoded> encode(std::span<const iovec> plain, std::uint32_t element_bytes);
  // Restores the bytes into `plain`, whose size must be theirs. False if it is not, or if the
  // encoded bytes are damaged; `plain` may then hold anything.
  bool decode(std::span<const std::byte> encoded, std::span<const iovec> plain);

 private:
  class Coder;
  class Lent;

  Mutex mutex_;
  std::vector<std::unique_ptr<Coder>> idle_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn
