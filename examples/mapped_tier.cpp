#include "examples/mapped_tier.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>

namespace example {
namespace {

std::runtime_error failed(const std::string& what) {
  return std::runtime_error(what + ": " + std::generic_category().message(errno));
}

cairn::FileDescriptor open_by_path(const nlohmann::json& exported) {
  const std::string path = exported.at("path");
  cairn::FileDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file) throw failed(path);
  // After a restart the server may have another file at the same path.
  struct stat found {};
  if (::fstat(file.get(), &found) != 0 ||
      found.st_ino != exported.at("inode").get<std::uint64_t>()) {
    throw std::runtime_error(path + " is no longer the exported memory");
  }
  return file;
}

}  // namespace

MappedTier::MappedTier(const cairn::client::CacheClient::ExportedTier& exported,
                       const nlohmann::json& layout)
    : size_bytes_(exported.description.at("size_bytes")),
      block_stride_bytes_(exported.description.at("strides").at("block_bytes")),
      layer_stride_bytes_(exported.description.at("strides").at("layer_bytes")),
      outer_stride_bytes_(exported.description.at("strides").at("outer_bytes")),
      layers_(layout.at("num_layers")),
      outers_(layout.at("outer_dim")),
      piece_bytes_(layout.at("page_size").get<std::uint64_t>() *
                   layout.at("inner_dim").get<std::uint64_t>() *
                   layout.at("dtype_width_bytes").get<std::uint64_t>()) {
  const nlohmann::json& description = exported.description;
  if (description.at("kind") != "shm") {
    throw std::runtime_error("this engine maps shared memory, not " +
                             description.at("kind").dump());
  }
  for (const auto& region : description.at("regions"))
    regions_.push_back(region.at("offset_bytes"));
  const auto region_bytes = description.at("regions").front().at("size_bytes").get<std::uint64_t>();
  slots_ = region_bytes / block_stride_bytes_;
  if (exported.file != nullptr) {
    map(exported.file->get());
  } else {
    map(open_by_path(description).get());
  }
}

void MappedTier::map(int file) {
  void* const base = ::mmap(nullptr, size_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (base == MAP_FAILED) throw failed("the tier cannot be mapped");
  base_ = static_cast<std::byte*>(base);
}

MappedTier::~MappedTier() { ::munmap(base_, size_bytes_); }

std::span<std::byte> MappedTier::piece(Piece at) const {
  // If each layer has its own region, the layer stride is 0.
  const std::uint64_t region = regions_.at(regions_.size() > 1 ? at.layer : 0);
  return {base_ + region + at.slot * block_stride_bytes_ + at.layer * layer_stride_bytes_ +
              at.outer * outer_stride_bytes_,
          piece_bytes_};
}

}  // namespace example
