#include "tests/e2e/support/mapped_slots.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>

#include "tests/e2e/support/test_blocks.hpp"

namespace cairn::e2e {

MappedTier::MappedTier(const nlohmann::json& exported)
    : MappedTier(exported, FileDescriptor(::open(exported.at("path").get<std::string>().c_str(),
                                                 O_RDWR | O_CLOEXEC))) {}

MappedTier::MappedTier(const nlohmann::json& exported, const FileDescriptor& file)
    : exported_(exported) {
  void* const base = ::mmap(nullptr, exported_.at("size_bytes").get<std::size_t>(),
                            PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (base == MAP_FAILED) throw std::runtime_error(exported_.dump() + " cannot be mapped");
  base_ = static_cast<char*>(base);
}

MappedTier::~MappedTier() { ::munmap(base_, exported_.at("size_bytes").get<std::size_t>()); }

std::size_t MappedTier::offset_of(Piece at) const {
  const json& regions = exported_.at("regions");
  const json& strides = exported_.at("strides");
  const auto region = regions.at(regions.size() > 1 ? at.layer : 0);
  return region.at("offset_bytes").get<std::size_t>() +
         at.slot * strides.at("block_bytes").get<std::size_t>() +
         at.layer * strides.at("layer_bytes").get<std::size_t>() +
         at.outer * strides.at("outer_bytes").get<std::size_t>();
}

std::string MappedTier::read(Piece at, std::size_t size_bytes) const {
  return {base_ + offset_of(at), size_bytes};
}

void MappedTier::write(Piece at, const std::string& bytes) {
  std::memcpy(base_ + offset_of(at), bytes.data(), bytes.size());
}

std::string MappedTier::read_block(std::size_t slot) const {
  std::string bytes;
  for (std::size_t layer = 0; layer < kLayers; ++layer) {
    for (std::size_t outer = 0; outer < kOuter; ++outer) {
      bytes += read({slot, layer, outer}, kRegionBytes);
    }
  }
  return bytes;
}

void MappedTier::write_block(std::size_t slot, const std::string& bytes) {
  for (std::size_t layer = 0; layer < kLayers; ++layer) {
    for (std::size_t outer = 0; outer < kOuter; ++outer) {
      write({slot, layer, outer},
            bytes.substr((layer * kOuter + outer) * kRegionBytes, kRegionBytes));
    }
  }
}

}  // namespace cairn::e2e
