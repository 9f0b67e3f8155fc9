#pragma once

#include <cstdint>
#include <string>

#include "base/file_descriptor.hpp"
#include "client/http_client.hpp"
#include "tests/e2e/support/test_blocks.hpp"

// An engine's memory, large enough that copies take a while: one region per layer, [block][outer]
// in each. A number names a block's bytes, as in test_blocks.hpp.
namespace cairn::e2e {

class EngineArea {
 public:
  static constexpr std::uint64_t kLayers = 8;
  static constexpr std::uint64_t kSliceBytes = 4096;  // of a block, in a layer
  static constexpr std::uint64_t kBlockBytes = kLayers * kSliceBytes;

  // Resizes the file and maps it.
  EngineArea(FileDescriptor file, std::uint32_t num_blocks);
  ~EngineArea();
  EngineArea(const EngineArea&) = delete;
  EngineArea& operator=(const EngineArea&) = delete;

  // A memfd of this name and number of blocks, which nobody can shrink.
  static FileDescriptor sealed_file(const std::string& name, std::uint32_t num_blocks);

  // The shape of a cache and of an agent, without the alignment of the cache.
  static json shape();
  // The body of a registration. `where`: {"descriptor": 0} or {"path": …}.
  json registration(const json& where) const;
  const PassedFiles& files() const { return files_; }

  void write(std::uint32_t block, int n) const;
  bool holds(std::uint32_t block, int n) const;
  static std::string bytes(int n);  // in canonical order

 private:
  char* slice(std::uint64_t layer, std::uint32_t block) const;
  std::uint64_t region_bytes() const { return num_blocks_ * kSliceBytes; }
  std::uint64_t size_bytes() const { return kLayers * region_bytes(); }

  const PassedFiles files_;
  const std::uint32_t num_blocks_;
  char* data_ = nullptr;
};

}  // namespace cairn::e2e
