#include "replay/line_reader.hpp"

#include <filesystem>
#include <utility>

namespace cairn::replay {

Result<LineReader> LineReader::open(const std::string& path) {
  std::error_code failure;
  const std::uintmax_t bytes = std::filesystem::file_size(path, failure);
  if (failure) return Error{ErrorCode::not_found, path + ": " + failure.message()};
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error{ErrorCode::io_error, path + ": cannot be read"};
  return LineReader(std::move(file), path, bytes);
}

LineReader::LineReader(std::ifstream file, const std::string& path, std::uintmax_t file_bytes)
    : file_(std::move(file)), path_(path), file_bytes_(file_bytes), line_(kMaxLineBytes + 1) {}

Result<std::optional<std::string_view>> LineReader::next() {
  while (true) {
    ++line_number_;
    file_.getline(line_.data(), static_cast<std::streamsize>(line_.size()));
    const auto taken = static_cast<std::size_t>(file_.gcount());
    if (file_.bad()) return Error{ErrorCode::io_error, where() + "cannot be read"};
    if (file_.eof() && taken == 0) return std::optional<std::string_view>();
    if (file_.fail()) {
      return Error{ErrorCode::out_of_range,
                   where() + "longer than " + std::to_string(kMaxLineBytes) + " bytes"};
    }
    read_bytes_ += taken;
    // gcount() counts the newline, which is not stored; the last line may have none.
    std::string_view line(line_.data(), file_.eof() ? taken : taken - 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t") != std::string_view::npos) {
      return std::optional<std::string_view>(line);
    }
  }
}

double LineReader::fraction_done() const {
  if (file_bytes_ == 0) return 1;
  return static_cast<double>(read_bytes_) / static_cast<double>(file_bytes_);
}

std::string LineReader::name() const { return std::filesystem::path(path_).filename().string(); }

}  // namespace cairn::replay
