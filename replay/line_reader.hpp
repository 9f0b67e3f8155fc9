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

// The lines of a text file, one at a time and without keeping its pages, so that a file can be
// larger than memory. Skips blank lines. For one thread at a time.
class LineReader {
 public:
  // Far longer than the longest line of a real trace (374 blocks are 3 KB): anything longer is no
  // trace.
  static constexpr std::size_t kMaxLineBytes = std::size_t{4} << 20U;

  static Result<LineReader> open(const std::string& path);

  // Without its line end; nullopt after the last. Valid until the next call. out_of_range: longer
  // than kMaxLineBytes. io_error.
  Result<std::optional<std::string_view>> next();
  // The position of the line that next() returned last: "path:17: ", for an error.
  std::string where() const { return path_ + ":" + std::to_string(line_number_) + ": "; }
  // The share of the file that has been returned, 0 to 1.
  double fraction_done() const;
  const std::string& path() const { return path_; }
  // The file's name without its folder: names derived from it stay the same when the file moves.
  std::string name() const;

 private:
  // Size of one copy out of the file.
  static constexpr std::size_t kPieceBytes = std::size_t{256} << 10U;

  LineReader(MappedData file, const std::string& path);
  Result<> fill();

  MappedData file_;
  std::string path_;
  std::uint64_t copied_bytes_ = 0;  // position in the file of the buffer's end
  std::uint64_t line_number_ = 0;
  std::vector<char> buffer_;
  std::size_t begin_ = 0;  // copied bytes that are no line yet
  std::size_t end_ = 0;
};

}  // namespace cairn::replay
