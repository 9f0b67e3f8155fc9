#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>

#include "base/rate_meter.hpp"
#include "transport/record/plane_codec.hpp"

namespace cairn {

// How blocks lie below memory: on disk, in a store.
enum class Codec : std::uint8_t {
  none,   // as they are
  bytes,  // by PlaneCodec, those that become smaller
};
inline constexpr std::size_t kNumCodecs = 2;

// Encodes the blocks that go to one medium and decodes those that come back. Where decoding would
// be slower than the medium is, it leaves the blocks as they are. Thread-safe.
class MediumCodec {
 public:
  struct Options {
    Codec codec = Codec::none;
    const Clock& clock;  // must outlive the codec
  };
  // Measures how fast this machine decodes, in a few ms, unless there is no codec.
  explicit MediumCodec(const Options& options);

  bool is_on() const { return options_.codec != Codec::none; }
  // nullopt: the block goes as it is. Arguments as of PlaneCodec::encode().
  std::optional<PlaneCodec::Encoded> encode(std::span<const iovec> plain,
                                            std::uint32_t element_bytes);
  // As PlaneCodec::decode(). Works with Codec::none too: another server may have encoded the block.
  bool decode(std::span<const std::byte> encoded, std::span<const iovec> plain);

  // The same if the encoded bytes lie in the first bytes of `plain`.
  bool decode_in_place(std::uint64_t encoded_bytes, std::span<const iovec> plain);

  // Reads of the medium, in bytes as they lie there.
  RateMeter reading;

  // Since the start.
  struct Stats {
    Codec codec = Codec::none;
    std::uint64_t encoded_blocks = 0;
    std::uint64_t plain_bytes = 0;  // of those blocks, before and after
    std::uint64_t encoded_bytes = 0;
    std::uint64_t noise_blocks = 0;  // left as they are: they do not become smaller
    std::uint64_t slow_blocks = 0;   // left as they are: decoding is slower than the medium
    std::uint64_t decoded_blocks = 0;
    double decoded_bytes_per_s = 0;  // 0: not known
    double read_bytes_per_s = 0;
  };
  Stats stats() const;

 private:
  // One thread decodes while another reads, so the slower of both sets the pace.
  bool is_slow() const;
  void measure();

  const Options options_;
  PlaneCodec codec_;
  RateMeter decoding_;  // in plain bytes
  std::atomic<std::uint64_t> encoded_blocks_{0};
  std::atomic<std::uint64_t> plain_bytes_{0};
  std::atomic<std::uint64_t> encoded_bytes_{0};
  std::atomic<std::uint64_t> noise_blocks_{0};
  std::atomic<std::uint64_t> slow_blocks_{0};
  std::atomic<std::uint64_t> decoded_blocks_{0};
};

}  // namespace cairn
