#include "blockmgr/snapshot/snapshot_writer.hpp"

#include <string>

#include "base/pieces.hpp"

namespace cairn {
namespace {

// Shorter pieces are collected to this before they are written.
constexpr std::size_t kBufferBytes = 256 * 1024;

std::span<const std::byte> bytes_of(const iovec& piece) {
  return {static_cast<const std::byte*>(piece.iov_base), piece.iov_len};
}

}  // namespace

SnapshotWriter::SnapshotWriter(const SnapshotIo& io, SnapshotIo::Path path, FileDescriptor file)
    : io_(io), path_(std::move(path)), file_(std::move(file)) {
  buffer_.reserve(kBufferBytes);
}

SnapshotWriter::~SnapshotWriter() {
  // If this fails too, the next start removes it.
  if (!finished_) (void)io_.remove(partial());
}

Result<std::unique_ptr<SnapshotWriter>> SnapshotWriter::begin(const SnapshotIo& io,
                                                              const SnapshotIo::Path& path,
                                                              const SnapshotHeader& header) {
  auto file = io.create(path.native() + std::string(kPartialSuffix));
  if (!file) return std::move(file).error();
  std::unique_ptr<SnapshotWriter> writer(new SnapshotWriter(io, path, std::move(*file)));
  CAIRN_TRY(writer->write_header(header));
  return writer;
}

Result<> SnapshotWriter::write_header(const SnapshotHeader& header) {
  if (header.compressed) frames_.emplace();
  const SnapshotBytes bytes = encode(header);
  footer_.header_checksum = hash_bytes(bytes, 0);
  return put(bytes);
}

Result<> SnapshotWriter::add(SnapshotRecord record, std::span<const iovec> bytes) {
  hash_.reset();
  stored_hash_.reset();
  const std::uint64_t begin = offset_bytes_;
  record.block_bytes = total_bytes(bytes);
  if (frames_) frames_->begin(record.block_bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const auto piece = bytes_of(bytes[i]);
    hash_.add(piece);
    if (frames_) {
      CAIRN_TRY(compress(piece, i + 1 == bytes.size()));
    } else {
      CAIRN_TRY(put(piece));
    }
  }
  record.stored_bytes = offset_bytes_ - begin;
  record.checksum = hash_.value();
  record.stored_checksum = frames_ ? stored_hash_.value() : record.checksum;
  append(index_, record);
  ++footer_.blocks;
  return {};
}

Result<> SnapshotWriter::compress(std::span<const std::byte> bytes, bool last) {
  while (true) {
    auto step = frames_->step(bytes, last);
    if (!step) return std::move(step).error();
    bytes = bytes.subspan(step->taken);
    CAIRN_TRY(put_stored(step->made));
    if (last ? step->done : bytes.empty()) return {};
  }
}

Result<> SnapshotWriter::put_stored(std::span<const std::byte> bytes) {
  stored_hash_.add(bytes);
  return put(bytes);
}

Result<> SnapshotWriter::put(std::span<const std::byte> bytes) {
  offset_bytes_ += bytes.size();
  if (buffer_.size() + bytes.size() > kBufferBytes) CAIRN_TRY(flush());
  if (bytes.size() > kBufferBytes) return io_.append(file_, bytes);
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  return {};
}

Result<> SnapshotWriter::flush() {
  if (buffer_.empty()) return {};
  CAIRN_TRY(io_.append(file_, buffer_));
  buffer_.clear();
  return {};
}

Result<std::uint64_t> SnapshotWriter::finish() {
  footer_.index_offset = offset_bytes_;
  footer_.index_bytes = index_.size();
  footer_.index_checksum = hash_bytes(index_, 0);
  footer_.file_bytes = offset_bytes_ + index_.size() + kSnapshotFooterBytes;
  CAIRN_TRY(put(index_));
  CAIRN_TRY(put(encode(footer_)));
  CAIRN_TRY(flush());
  CAIRN_TRY(io_.sync(file_));
  CAIRN_TRY(io_.rename(partial(), path_));
  // The file has its name now. If the rename may not survive a power cut, it counts as failed.
  finished_ = true;
  if (auto synced = io_.sync_folder(path_.parent_path()); !synced) {
    (void)io_.remove(path_);
    return std::move(synced).error();
  }
  return footer_.file_bytes;
}

}  // namespace cairn
