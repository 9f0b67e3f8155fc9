#include "base/mapped_data.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include "base/assert.hpp"
#include "base/file_error.hpp"

namespace cairn {
namespace {

Error mapped_data_failure(const char* what, int number) {
  return {file_error_code(number),
          std::string("it cannot be ") + what + ": " + std::generic_category().message(number)};
}

Result<> read_at(int file, std::uint64_t at, std::span<std::byte> room) {
  while (!room.empty()) {
    const ::ssize_t moved = ::pread(file, room.data(), room.size(), static_cast<::off_t>(at));
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return mapped_data_failure("read", errno);
    if (moved == 0) return Error{ErrorCode::io_error, "the file was truncated while it was read"};
    at += static_cast<std::uint64_t>(moved);
    room = room.subspan(static_cast<std::size_t>(moved));
  }
  return {};
}

}  // namespace

void MappedData::Unmap::operator()(std::byte* first) const { ::munmap(first, size_bytes); }

Result<MappedData> MappedData::open(const std::filesystem::path& path, const Options& options) {
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const auto named = [&path](const Error& why) {
    return Error{why.code, path.string() + ": " + why.detail};
  };
  if (file.get() < 0) {
    if (errno == ENOENT) return Error{ErrorCode::not_found, path.string() + " is not there"};
    return named(mapped_data_failure("opened", errno));
  }
  struct ::stat status {};
  if (::fstat(file.get(), &status) != 0)
    return named(mapped_data_failure("asked for its size", errno));
  if (!S_ISREG(status.st_mode))
    return Error{ErrorCode::io_error, path.string() + " is not a regular file"};
  auto data = of(file, static_cast<std::uint64_t>(status.st_size), options);
  if (!data) return named(data.error());
  if (options.stays_open) data->file_ = std::move(file);
  return data;
}

Result<MappedData> MappedData::of(const FileDescriptor& file, std::uint64_t size_bytes,
                                  const Options& options) {
  MappedData data;
  data.size_bytes_ = size_bytes;
  data.counts_ = options.counts;
  if (size_bytes == 0) return data;
  void* const at = options.is_mapped
                       ? ::mmap(nullptr, size_bytes, PROT_READ, MAP_PRIVATE, file.get(), 0)
                       : MAP_FAILED;
  if (at != MAP_FAILED) {
    data.map_ = std::unique_ptr<std::byte, Unmap>(static_cast<std::byte*>(at), Unmap{size_bytes});
    if (options.in_order) data.advise(0, size_bytes, MADV_SEQUENTIAL);
    if (data.counts_ != nullptr) ++data.counts_->mapped_files;
    return data;
  }
  if (size_bytes > options.max_heap_bytes) {
    return Error{ErrorCode::io_error, "it cannot be mapped, and its " + std::to_string(size_bytes) +
                                          " bytes exceed the limit of " +
                                          std::to_string(options.max_heap_bytes) +
                                          " for reading into memory"};
  }
  data.heap_.resize(size_bytes);
  CAIRN_TRY(read_at(file.get(), 0, data.heap_));
  if (data.counts_ != nullptr) ++data.counts_->files_on_heap;
  return data;
}

std::span<const std::byte> MappedData::bytes() const {
  return map_ ? std::span<const std::byte>(map_.get(), size_bytes_) : heap_;
}

bool MappedData::copy(std::uint64_t from_bytes, std::span<std::byte> room) const {
  CAIRN_ASSERT(from_bytes <= size_bytes_ && room.size() <= size_bytes_ - from_bytes,
               "bytes of something else would be copied");
  if (room.empty()) return true;
  const std::byte* const first = bytes().data() + from_bytes;
  if (!map_) {
    std::memcpy(room.data(), first, room.size());
    return true;
  }
  const ::iovec to{room.data(), room.size()};
  const ::iovec from{const_cast<std::byte*>(first), room.size()};
  const ::ssize_t moved = ::process_vm_readv(::getpid(), &to, 1, &from, 1, 0);
  if (moved >= 0 && static_cast<std::size_t>(moved) == room.size()) return true;
  return file_.get() >= 0 && read_at(file_.get(), from_bytes, room).has_value();
}

void MappedData::done_before(std::uint64_t end_bytes) {
  if (!map_ || end_bytes < released_bytes_ + kReleaseBytes) return;
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t end = end_bytes / page * page;
  advise(released_bytes_, end - released_bytes_, MADV_DONTNEED);
  if (counts_ != nullptr) counts_->released_bytes += end - released_bytes_;
  released_bytes_ = end;
}

void MappedData::advise(std::uint64_t from_bytes, std::uint64_t bytes, int advice) const {
  const bool taken = ::madvise(map_.get() + from_bytes, bytes, advice) == 0;
  if (!taken && counts_ != nullptr) ++counts_->refused_advice;
}

}  // namespace cairn
