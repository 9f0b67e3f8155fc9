#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/file_descriptor.hpp"

namespace cairn::e2e {

// Memory that a test maps as an engine would: an exported tier, or the test's own file. Throws
// std::runtime_error if it cannot be mapped.
class MappedTier {
 public:
  explicit MappedTier(const nlohmann::json& exported);
  // Maps the open file and ignores the path.
  MappedTier(const nlohmann::json& exported, const FileDescriptor& file);
  ~MappedTier();
  MappedTier(const MappedTier&) = delete;
  MappedTier& operator=(const MappedTier&) = delete;

  struct Piece {
    std::size_t slot = 0;
    std::size_t layer = 0;
    std::size_t outer = 0;
  };
  std::string read(Piece at, std::size_t size_bytes) const;
  void write(Piece at, const std::string& bytes);
  // By the offset in the mapped memory.
  std::string read_at(std::size_t offset_bytes, std::size_t size_bytes) const {
    return {base_ + offset_bytes, size_bytes};
  }
  void write_at(std::size_t offset_bytes, const std::string& bytes) {
    bytes.copy(base_ + offset_bytes, bytes.size());
  }

  // A test block's canonical bytes, whatever the layout.
  std::string read_block(std::size_t slot) const;
  void write_block(std::size_t slot, const std::string& bytes);

 private:
  std::size_t offset_of(Piece at) const;

  const nlohmann::json exported_;
  char* base_ = nullptr;
};

}  // namespace cairn::e2e
