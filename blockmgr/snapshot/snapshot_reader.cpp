#include "blockmgr/snapshot/snapshot_reader.hpp"

#include <algorithm>
#include <string>

#include "base/assert.hpp"
#include "base/pieces.hpp"

namespace cairn {
namespace {

// Copied at a time, and then hashed while it is in the processor's cache.
constexpr std::size_t kPieceBytes = 256 * 1024;

}  // namespace

// The destination of a block's bytes, piece by piece: a caller's room, or the same scratch each
// time.
class SnapshotReader::Rooms {
 public:
  explicit Rooms(std::span<const iovec> room) : room_(room), left_(total_bytes(room)) {}
  Rooms(std::span<std::byte> scratch, std::uint64_t size_bytes)
      : scratch_(scratch), left_(size_bytes) {}

  std::uint64_t left_bytes() const { return left_; }
  // Empty at the end.
  std::span<std::byte> next() {
    std::span<std::byte> piece = scratch_;
    if (scratch_.empty()) {
      while (!room_.empty() && used_ == room_.front().iov_len) {
        room_ = room_.subspan(1);
        used_ = 0;
      }
      if (room_.empty()) return {};
      piece = std::span(static_cast<std::byte*>(room_.front().iov_base), room_.front().iov_len)
                  .subspan(used_);
    }
    return piece.first(std::min({piece.size(), kPieceBytes, static_cast<std::size_t>(left_)}));
  }
  void filled(std::size_t size) {
    used_ += size;
    left_ -= size;
  }

 private:
  std::span<const iovec> room_ = {};
  std::span<std::byte> scratch_ = {};
  std::size_t used_ = 0;  // of the first piece of room
  std::uint64_t left_ = 0;
};

Result<std::unique_ptr<SnapshotReader>> SnapshotReader::open(const SnapshotIo& io,
                                                             const SnapshotIo::Path& path) {
  auto file = io.open(path);
  if (!file) return std::move(file).error();
  if (!*file) {
    return Error{ErrorCode::unknown_snapshot, "there is no snapshot " + path.filename().string()};
  }
  std::unique_ptr<SnapshotReader> reader(new SnapshotReader(io, std::move(**file)));
  if (auto read = reader->read_ends(); !read) {
    return Error{read.error().code, path.string() + ": " + read.error().detail};
  }
  return reader;
}

Result<> SnapshotReader::read_ends() {
  auto size = io_.size_bytes(file_);
  if (!size) return std::move(size).error();
  if (*size < kSnapshotPreludeBytes + kSnapshotFooterBytes) return broken_snapshot("it is cut off");
  SnapshotBytes bytes(kSnapshotPreludeBytes);
  CAIRN_TRY(io_.read(file_, {.offset_bytes = 0, .room = bytes}));
  const auto length = decode_header_length(bytes);
  if (!length) return length.error();
  if (*length > *size - kSnapshotFooterBytes) return broken_snapshot("it is cut off");
  header_bytes_ = *length;
  bytes.resize(*length);
  CAIRN_TRY(io_.read(file_, {.offset_bytes = 0, .room = bytes}));
  auto header = decode_header(bytes);
  if (!header) return std::move(header).error();
  header_ = std::move(*header);

  SnapshotBytes end(kSnapshotFooterBytes);
  CAIRN_TRY(io_.read(file_, {.offset_bytes = *size - kSnapshotFooterBytes, .room = end}));
  const auto footer = decode_footer(end);
  if (!footer) return footer.error();
  footer_ = *footer;
  if (footer_.header_checksum != hash_bytes(bytes, 0)) {
    return broken_snapshot("its header and its footer belong to different snapshots");
  }
  // The second sum can overflow only if an earlier comparison fails.
  const bool fits = footer_.file_bytes == *size && footer_.index_offset >= header_bytes_ &&
                    footer_.index_offset <= *size - kSnapshotFooterBytes &&
                    footer_.index_bytes == *size - kSnapshotFooterBytes - footer_.index_offset;
  if (!fits) {
    return broken_snapshot("it is " + std::to_string(*size) + " bytes long, not " +
                           std::to_string(footer_.file_bytes));
  }
  return {};
}

Result<> SnapshotReader::load_index() {
  index_.resize(footer_.index_bytes);
  CAIRN_TRY(io_.read(file_, {.offset_bytes = footer_.index_offset, .room = index_}));
  if (hash_bytes(index_, 0) != footer_.index_checksum) {
    return broken_snapshot("the checksum of its index is wrong");
  }
  std::uint64_t blocks = 0;
  std::uint64_t offset = header_bytes_;
  for (SnapshotIndexCursor cursor(index_); !cursor.at_end(); ++blocks) {
    const auto record = cursor.next();
    if (!record) return record.error();
    const KvGroupNumber group = record->key.kv_group();
    const bool is_known = group < header_.config.kv_group_count();
    const std::uint64_t block_bytes =
        is_known ? cairn::block_bytes(header_.config.shape_of(group)) : 0;
    const bool fits = is_known && record->block_bytes == block_bytes &&
                      record->stored_bytes <= footer_.index_offset - offset &&
                      (header_.compressed || record->stored_bytes == block_bytes);
    if (!fits)
      return broken_snapshot("a block of it has " + std::to_string(record->stored_bytes) +
                             " bytes");
    offset += record->stored_bytes;
  }
  if (blocks != footer_.blocks || offset != footer_.index_offset) {
    return broken_snapshot("its index does not fit its data");
  }
  if (header_.compressed) {
    frames_.emplace();
    input_.resize(kPieceBytes);
  } else {
    map_ = io_.map(file_, footer_.index_offset);
  }
  scratch_.resize(kPieceBytes);
  rewind();
  return {};
}

void SnapshotReader::rewind() {
  cursor_.emplace(index_);
  next_offset_ = header_bytes_;
  if (map_) map_->rewind();
}

std::optional<SnapshotReader::Block> SnapshotReader::next() {
  if (cursor_->at_end()) return std::nullopt;
  auto record = cursor_->next();
  CAIRN_ASSERT(record.has_value(), "an index that was checked has changed in memory");
  Block block{.record = std::move(*record), .offset_bytes = next_offset_};
  next_offset_ += block.record.stored_bytes;
  return block;
}

Result<> SnapshotReader::check(const Block& block) {
  return stream(block, Rooms(scratch_, block.record.block_bytes));
}

Result<> SnapshotReader::read(const Block& block, std::span<const iovec> room) {
  Rooms rooms(room);
  CAIRN_ASSERT(rooms.left_bytes() == block.record.block_bytes, "a block would be cut");
  return stream(block, rooms);
}

Result<> SnapshotReader::stream(const Block& block, Rooms rooms) {
  hash_.reset();
  stored_hash_.reset();
  CAIRN_TRY(header_.compressed ? stream_frame(block, rooms) : stream_stored(block, rooms));
  const std::uint64_t stored = header_.compressed ? stored_hash_.value() : hash_.value();
  if (hash_.value() == block.record.checksum && stored == block.record.stored_checksum) return {};
  return broken_snapshot("the checksum of the block at offset " +
                         std::to_string(block.offset_bytes) + " is wrong");
}

Result<> SnapshotReader::stream_stored(const Block& block, Rooms& rooms) {
  std::uint64_t offset = block.offset_bytes;
  while (rooms.left_bytes() > 0) {
    const std::span<std::byte> room = rooms.next();
    CAIRN_TRY(copy({.offset_bytes = offset, .room = room}));
    hash_.add(room);
    rooms.filled(room.size());
    offset += room.size();
  }
  return {};
}

Result<> SnapshotReader::stream_frame(const Block& block, Rooms& rooms) {
  const Error wrong = broken_snapshot("the block at offset " + std::to_string(block.offset_bytes) +
                                      " has another size");
  frames_->begin();
  std::uint64_t offset = block.offset_bytes;
  std::uint64_t left = block.record.stored_bytes;
  std::span<const std::byte> input;
  while (true) {
    if (input.empty() && left > 0) {
      const auto piece = std::span(input_).first(std::min<std::uint64_t>(left, kPieceBytes));
      CAIRN_TRY(io_.read(file_, {.offset_bytes = offset, .room = piece}));
      stored_hash_.add(piece);
      offset += piece.size();
      left -= piece.size();
      input = piece;
    }
    // Even with all room filled, the end of the frame may be missing.
    const std::span<std::byte> room =
        rooms.left_bytes() > 0 ? rooms.next() : std::span<std::byte>();
    const bool had_input = !input.empty();
    const auto step = frames_->step(input, room);
    if (!step) return step.error();
    hash_.add(room.first(step->made));
    rooms.filled(step->made);
    input = input.subspan(step->taken);
    if (step->done) {
      if (rooms.left_bytes() == 0 && left == 0 && input.empty()) return {};
      return wrong;
    }
    if (step->made == 0 && step->taken == 0 && (room.empty() || !had_input)) return wrong;
  }
}

Result<> SnapshotReader::copy(SnapshotIo::Piece piece) {
  if (map_ && io_.copy_mapped(*map_, piece)) return {};
  // Returns the error, or succeeds without the mapping.
  return io_.read(file_, piece);
}

void SnapshotReader::done_before(const Block& block) {
  if (map_) map_->done_before(block.offset_bytes);
}

}  // namespace cairn
