#include "blockmgr/snapshot/snapshot_zstd.hpp"

#include <zstd.h>

#include <new>
#include <string>
#include <vector>

#include "base/assert.hpp"

namespace cairn {
namespace {

// The fastest regular level. KV data is nearly random below the exponents: higher levels take
// several times as long and save a few bytes in a thousand.
constexpr int kLevel = 1;

Error failure(const char* what, std::size_t code) {
  return {ErrorCode::broken_snapshot, std::string(what) + ": " + ZSTD_getErrorName(code)};
}

}  // namespace

struct FrameCompressor::State {
  State() : context(ZSTD_createCCtx()), room(ZSTD_CStreamOutSize()) {
    if (context == nullptr) throw std::bad_alloc();
    CAIRN_ASSERT(!ZSTD_isError(ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, kLevel)) &&
                     !ZSTD_isError(ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog,
                                                          FrameDecompressor::kMaxWindowLog - 2)),
                 "what is written could not be read");
  }
  ~State() { ZSTD_freeCCtx(context); }
  ZSTD_CCtx* const context;
  std::vector<std::byte> room;
};

FrameCompressor::FrameCompressor() : state_(std::make_unique<State>()) {}
FrameCompressor::~FrameCompressor() = default;

void FrameCompressor::begin(std::uint64_t size_bytes) {
  ZSTD_CCtx_reset(state_->context, ZSTD_reset_session_only);
  ZSTD_CCtx_setPledgedSrcSize(state_->context, size_bytes);
}

Result<FrameCompressor::Step> FrameCompressor::step(std::span<const std::byte> in, bool last) {
  ZSTD_inBuffer source{in.data(), in.size(), 0};
  ZSTD_outBuffer target{state_->room.data(), state_->room.size(), 0};
  const std::size_t left =
      ZSTD_compressStream2(state_->context, &target, &source, last ? ZSTD_e_end : ZSTD_e_continue);
  if (ZSTD_isError(left)) {
    return Error{ErrorCode::internal,
                 std::string("zstd cannot compress: ") + ZSTD_getErrorName(left)};
  }
  return Step{.taken = source.pos,
              .made = std::span(state_->room).first(target.pos),
              .done = last && left == 0};
}

struct FrameDecompressor::State {
  State() : context(ZSTD_createDCtx()) {
    if (context == nullptr) throw std::bad_alloc();
    ZSTD_DCtx_setParameter(context, ZSTD_d_windowLogMax, kMaxWindowLog);
  }
  ~State() { ZSTD_freeDCtx(context); }
  ZSTD_DCtx* const context;
};

FrameDecompressor::FrameDecompressor() : state_(std::make_unique<State>()) {}
FrameDecompressor::~FrameDecompressor() = default;

void FrameDecompressor::begin() { ZSTD_DCtx_reset(state_->context, ZSTD_reset_session_only); }

Result<FrameDecompressor::Step> FrameDecompressor::step(std::span<const std::byte> in,
                                                        std::span<std::byte> out) {
  ZSTD_inBuffer source{in.data(), in.size(), 0};
  ZSTD_outBuffer target{out.data(), out.size(), 0};
  const std::size_t left = ZSTD_decompressStream(state_->context, &target, &source);
  if (ZSTD_isError(left)) return failure("a block of the snapshot cannot be decompressed", left);
  return Step{.taken = source.pos, .made = target.pos, .done = left == 0};
}

}  // namespace cairn
