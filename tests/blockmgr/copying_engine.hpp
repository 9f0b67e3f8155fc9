#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>

#include "tests/blockmgr/rig.hpp"

namespace cairn::testing {

inline constexpr std::uint64_t kAgentBlocks = 256;
inline constexpr std::uint64_t kLayerBytes = kAgentBlocks * 32;  // of small_shape()

// Memory of an engine, one region per layer: passed as an open file or named by its path.
class Engine {
 public:
  explicit Engine(std::filesystem::path path = {})
      : path_(std::move(path)),
        file_(path_.empty() ? ::memfd_create("engine", MFD_CLOEXEC | MFD_ALLOW_SEALING)
                            : ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    EXPECT_EQ(::ftruncate(file_.get(), 2 * kLayerBytes), 0);
    if (path_.empty()) {
      EXPECT_EQ(::fcntl(file_.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
    }
    data_ = static_cast<std::byte*>(
        ::mmap(nullptr, 2 * kLayerBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0));
  }
  ~Engine() { ::munmap(data_, 2 * kLayerBytes); }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  EngineMemoryConfig config(const std::string& name = "engine") const {
    EngineMemoryConfig config{.name = name, .shape = small_shape()};
    config.shape.num_blocks = kAgentBlocks;
    for (std::uint64_t layer = 0; layer < 2; ++layer) {
      EngineMemoryConfig::Part part{
          .memory = {.kind = ExportedMemory::Kind::shm, .path = path_.string()},
          .offset_bytes = layer * kLayerBytes,
          .size_bytes = kLayerBytes};
      if (path_.empty()) {
        part.memory.file = std::make_shared<const FileDescriptor>(::dup(file_.get()));
        part.descriptor = 0;
      }
      config.regions.push_back(std::move(part));
    }
    return config;
  }
  Bytes read(std::uint64_t block) const {
    Bytes bytes;
    for (std::uint64_t layer = 0; layer < 2; ++layer) {
      const std::byte* const piece = data_ + layer * kLayerBytes + block * 32;
      bytes.insert(bytes.end(), piece, piece + 32);
    }
    return bytes;
  }
  void write(std::uint64_t block, const Bytes& bytes) const {
    for (std::uint64_t layer = 0; layer < 2; ++layer) {
      std::memcpy(data_ + layer * kLayerBytes + block * 32, bytes.data() + layer * 32, 32);
    }
  }

 private:
  const std::filesystem::path path_;
  const FileDescriptor file_;
  std::byte* data_ = nullptr;
};

}  // namespace cairn::testing
