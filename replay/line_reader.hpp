#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_data.hpp"
#include "base/result.hpp"

namespace cairn::replay {

// The lines of a text file, one at a time and without its pages staying, so that a file may be
// larger than memory. Lines of
// blanks are passed over. One thread at a time.
class LineReader {
 public:
  // Far beyond the longest line of a real trace (374 blocks are 3 KB): more is not a trace.
  static constexpr std::size_t kMaxLineBytes = std::size_t{4} << 20U;

  static Result<LineReader> open(const std::string& path);

  // Without its end; nothing after the last. Valid until the next call. out_of_range: longer than
  // kMaxLineBytes. io_error.
  Result<std::optional<std::string_view>> next();
  // Of the line that next() gave last: "path:17: ", for an error.
  std::string where() const { return path_ + ":" + std::to_string(line_number_) + ": "; }
  // How much of the file has been handed out, 0 to 1.
  double fraction_done() const;
  const std::string& path() const { return path_; }
  // The file's name without its folder: what is named by it stays when the file moves.
  std::string name() const;

 private:
  // What is copied out of the file at a time.
  static constexpr std::size_t kPieceBytes = std::size_t{256} << 10U;

  LineReader(MappedData file, const std::string& path);
  Result<> fill();

  MappedData file_;
  std::string path_;
  std::uint64_t copied_bytes_ = 0;  // of the file, into the buffer
  std::uint64_t line_number_ = 0;
  std::vector<char> buffer_;
  std::size_t begin_ = 0;  // of what was copied and is no line yet
  std::size_t end_ = 0;
};

}  // namespace cairn::replay
