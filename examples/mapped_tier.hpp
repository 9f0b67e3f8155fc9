#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "client/cache_client.hpp"

namespace example {

// A tier of a cache, mapped by what `POST …/tiers/{tier}/export` answered. Throws
// std::runtime_error where it cannot be mapped, or is not what was exported any more.
class MappedTier {
 public:
  // By the open file that came along where the server was asked over its Unix socket, else by path,
  // which leads there in the server's PID namespace only. `layout` is the cache's own, as
  // `GET /v1/caches/{cache}` tells it.
  MappedTier(const cairn::client::CacheClient::ExportedTier& exported,
             const nlohmann::json& layout);
  ~MappedTier();
  MappedTier(const MappedTier&) = delete;
  MappedTier& operator=(const MappedTier&) = delete;

  std::uint64_t layers() const { return layers_; }
  std::uint64_t outers() const { return outers_; }
  // What one layer has of a block's keys, or of its values.
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
  std::vector<std::uint64_t> regions_;  // where each begins
  std::uint64_t block_stride_bytes_ = 0;
  std::uint64_t layer_stride_bytes_ = 0;
  std::uint64_t outer_stride_bytes_ = 0;
  std::uint64_t layers_ = 0;
  std::uint64_t outers_ = 0;
  std::uint64_t piece_bytes_ = 0;
};

}  // namespace example
