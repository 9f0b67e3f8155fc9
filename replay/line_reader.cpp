#include "replay/line_reader.hpp"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

namespace cairn::replay {

Result<LineReader> LineReader::open(const std::string& path) {
  auto file = MappedData::open(path, {.stays_open = true});
  if (!file) return std::move(file).error();
  return LineReader(std::move(*file), path);
}

LineReader::LineReader(MappedData file, const std::string& path)
    : file_(std::move(file)), path_(path), buffer_(kPieceBytes) {}

Result<std::optional<std::string_view>> LineReader::next() {
  while (true) {
    ++line_number_;
    std::size_t looked_at = 0;
    const char* newline = nullptr;
    while (true) {
      const char* const first = buffer_.data() + begin_;
      const std::size_t there = end_ - begin_;
      newline = static_cast<const char*>(std::memchr(first + looked_at, '\n', there - looked_at));
      if (newline != nullptr || copied_bytes_ == file_.size_bytes()) break;
      looked_at = there;
      if (looked_at > kMaxLineBytes) break;
      CAIRN_TRY(fill());
    }
    if (newline == nullptr && begin_ == end_) return std::optional<std::string_view>();
    const char* const first = buffer_.data() + begin_;
    const std::size_t bytes =
        newline == nullptr ? end_ - begin_ : static_cast<std::size_t>(newline - first);
    if (bytes > kMaxLineBytes) {
      return Error{ErrorCode::out_of_range,
                   where() + "longer than " + std::to_string(kMaxLineBytes) + " bytes"};
    }
    begin_ += bytes + (newline == nullptr ? 0 : 1);
    std::string_view line(first, bytes);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t") != std::string_view::npos) {
      return std::optional<std::string_view>(line);
    }
  }
}

// After the existing bytes; makes room for it.
Result<> LineReader::fill() {
  std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
  end_ -= std::exchange(begin_, 0);
  if (buffer_.size() - end_ < kPieceBytes) buffer_.resize(buffer_.size() + kPieceBytes);
  const std::uint64_t bytes =
      std::min<std::uint64_t>(kPieceBytes, file_.size_bytes() - copied_bytes_);
  const auto room = std::as_writable_bytes(std::span(buffer_)).subspan(end_, bytes);
  if (!file_.copy(copied_bytes_, room)) {
    return Error{ErrorCode::io_error, where() + "cannot be read; the file was cut off"};
  }
  copied_bytes_ += bytes;
  end_ += bytes;
  file_.done_before(copied_bytes_);
  return {};
}

double LineReader::fraction_done() const {
  if (file_.size_bytes() == 0) return 1;
  return static_cast<double>(copied_bytes_ - (end_ - begin_)) /
         static_cast<double>(file_.size_bytes());
}

std::string LineReader::name() const { return std::filesystem::path(path_).filename().string(); }

}  // namespace cairn::replay
