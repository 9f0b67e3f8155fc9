#include "tests/e2e/support/engine_area.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <stdexcept>
#include <utility>

namespace cairn::e2e {
namespace {

// Each word differs from those of other layers and of other numbers.
std::string slice_of(int n, std::uint64_t layer) {
  std::string bytes(EngineArea::kSliceBytes, '\0');
  std::uint64_t x = static_cast<std::uint64_t>(n) * 0x9E3779B97F4A7C15 + layer + 1;
  for (std::size_t at = 0; at < bytes.size(); at += sizeof x) {
    x = x * 6364136223846793005 + 1442695040888963407;
    std::memcpy(bytes.data() + at, &x, sizeof x);
  }
  return bytes;
}

}  // namespace

EngineArea::EngineArea(FileDescriptor file, std::uint32_t num_blocks)
    : files_({std::make_shared<const FileDescriptor>(std::move(file))}), num_blocks_(num_blocks) {
  const int fd = files_[0]->get();
  if (::ftruncate(fd, static_cast<::off_t>(size_bytes())) != 0) {
    throw std::runtime_error("no memory for an engine");
  }
  void* const data = ::mmap(nullptr, size_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) throw std::runtime_error("an engine's memory is not mapped");
  data_ = static_cast<char*>(data);
}

EngineArea::~EngineArea() { ::munmap(data_, size_bytes()); }

FileDescriptor EngineArea::sealed_file(const std::string& name, std::uint32_t num_blocks) {
  FileDescriptor file(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const auto size = static_cast<::off_t>(num_blocks * kBlockBytes);
  if (!file || ::ftruncate(file.get(), size) != 0 ||
      ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
    throw std::runtime_error("no sealed memory for an engine");
  }
  return file;
}

json EngineArea::shape() {
  return {{"num_layers", kLayers},
          {"outer_dim", 2},
          {"page_size", 16},
          {"inner_dim", 64},
          {"dtype_width_bytes", 2}};
}

json EngineArea::registration(const json& where) const {
  json regions = json::array();
  for (std::uint64_t layer = 0; layer < kLayers; ++layer) {
    json region = {
        {"kind", "shm"}, {"offset_bytes", layer * region_bytes()}, {"size_bytes", region_bytes()}};
    region.update(where);
    regions.push_back(region);
  }
  return {{"num_blocks", num_blocks_},
          {"layout", "layer_separate"},
          {"shape", shape()},
          {"regions", regions}};
}

char* EngineArea::slice(std::uint64_t layer, std::uint32_t block) const {
  return data_ + layer * region_bytes() + block * kSliceBytes;
}

void EngineArea::write(std::uint32_t block, int n) const {
  for (std::uint64_t layer = 0; layer < kLayers; ++layer) {
    std::memcpy(slice(layer, block), slice_of(n, layer).data(), kSliceBytes);
  }
}

bool EngineArea::holds(std::uint32_t block, int n) const {
  for (std::uint64_t layer = 0; layer < kLayers; ++layer) {
    if (std::memcmp(slice(layer, block), slice_of(n, layer).data(), kSliceBytes) != 0) return false;
  }
  return true;
}

std::string EngineArea::bytes(int n) {
  std::string all;
  for (std::uint64_t layer = 0; layer < kLayers; ++layer) all += slice_of(n, layer);
  return all;
}

}  // namespace cairn::e2e
