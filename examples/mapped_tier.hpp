#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "client/cache_client.hpp"

namespace example {

// A tier of a cache, mapped as the response of `POST …/tiers/{tier}/export` describes. Throws
// std::runtime_error if it cannot be mapped or is no longer the exported memory.
class MappedTier {
 public:
  // Maps the open file that came with the response, if the request used the server's Unix socket.
  // Otherwise maps the path, which is valid only in the server's PID namespace. `layout` is that of
  // `GET /v1/caches/{cache}`.
  MappedTier(const cairn::client::CacheClient::ExportedTier& exported,
             const nlohmann::json& layout);
  ~MappedTier();
  MappedTier(const MappedTier&) = delete;
  MappedTier& operator=(const MappedTier&) = delete;

  std::uint64_t slots() const { return slots_; }
  std::uint64_t layers() const { return layers_; }
  std::uint64_t outers() const { return outers_; }
  // Bytes of a block's keys, or values, in one layer.
  std::uint64_t piece_bytes() const { return piece_bytes_; }
  struct Piece {
    std::uint64_t slot = 0;
    std::uint64_t layer = 0;
    std::uint64_t outer = 0;
  };
  std::span<std::byte> piece(Piece at) const;

 private:
  void map(int file);
  std::byte* base_ = nullptr;
  std::uint64_t size_bytes_ = 0;
  std::uint64_t slots_ = 0;
  std::vector<std::uint64_t> regions_;  // the offset of each
  std::uint64_t block_stride_bytes_ = 0;
  std::uint64_t layer_stride_bytes_ = 0;
  std::uint64_t outer_stride_bytes_ = 0;
  std::uint64_t layers_ = 0;
  std::uint64_t outers_ = 0;
  std::uint64_t piece_bytes_ = 0;
};

}  // namespace example
