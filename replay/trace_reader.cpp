#include "replay/trace_reader.hpp"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

namespace cairn::replay {
namespace {

using nlohmann::json;

// A whole number that is not negative, under that name; else why not.
Result<std::uint64_t> whole_number(const json& value, const std::string& name) {
  if (!value.is_number_unsigned()) {
    return Error{ErrorCode::wrong_type,
                 name + " must be a whole number of 0 or more, not " + value.dump()};
  }
  return value.get<std::uint64_t>();
}

Result<std::uint64_t> field(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) {
    return Error{ErrorCode::missing_field, std::string(name) + " is missing"};
  }
  return whole_number(*found, name);
}

Result<PromptRequest> parse_line(std::string_view line) {
  const json object = json::parse(line, nullptr, false);
  if (object.is_discarded()) return Error{ErrorCode::malformed, "not JSON"};
  if (!object.is_object()) return Error{ErrorCode::wrong_type, "not a JSON object"};
  const auto timestamp_ms = field(object, "timestamp");
  if (!timestamp_ms) return timestamp_ms.error();
  const auto input_tokens = field(object, "input_length");
  if (!input_tokens) return input_tokens.error();
  const auto output_tokens = field(object, "output_length");
  if (!output_tokens) return output_tokens.error();
  const auto ids = object.find("hash_ids");
  if (ids == object.end()) return Error{ErrorCode::missing_field, "hash_ids is missing"};
  if (!ids->is_array()) return Error{ErrorCode::wrong_type, "hash_ids must be an array"};
  PromptRequest request{.timestamp_ms = *timestamp_ms,
                        .input_tokens = *input_tokens,
                        .output_tokens = *output_tokens};
  request.hash_ids.reserve(ids->size());
  for (const json& id : *ids) {
    const auto number = whole_number(id, "an id of hash_ids");
    if (!number) return number.error();
    request.hash_ids.push_back(*number);
  }
  return request;
}

}  // namespace

Result<std::unique_ptr<TraceReader>> TraceReader::open(const std::string& path) {
  std::error_code failure;
  const std::uintmax_t bytes = std::filesystem::file_size(path, failure);
  if (failure) return Error{ErrorCode::not_found, path + ": " + failure.message()};
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error{ErrorCode::io_error, path + ": cannot be read"};
  return std::unique_ptr<TraceReader>(new TraceReader(std::move(file), path, bytes));
}

TraceReader::TraceReader(std::ifstream file, const std::string& path, std::uintmax_t file_bytes)
    : file_(std::move(file)),
      path_(path),
      name_(std::filesystem::path(path).filename().string()),
      file_bytes_(file_bytes),
      line_(kMaxLineBytes + 1) {}

Result<std::optional<PromptRequest>> TraceReader::next() {
  while (true) {
    ++line_number_;
    const std::string where = path_ + ":" + std::to_string(line_number_) + ": ";
    file_.getline(line_.data(), static_cast<std::streamsize>(line_.size()));
    const auto taken = static_cast<std::size_t>(file_.gcount());
    if (file_.bad()) return Error{ErrorCode::io_error, where + "cannot be read"};
    if (file_.eof() && taken == 0) return std::optional<PromptRequest>();
    if (file_.fail()) {
      return Error{ErrorCode::out_of_range,
                   where + "longer than " + std::to_string(kMaxLineBytes) + " bytes"};
    }
    read_bytes_ += taken;
    // gcount() counts the newline, which is not stored; the last line may have none.
    const std::string_view line(line_.data(), file_.eof() ? taken : taken - 1);
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    auto request = parse_line(line);
    if (!request) return Error{request.error().code, where + request.error().detail};
    return std::optional<PromptRequest>(std::move(*request));
  }
}

double TraceReader::fraction_done() const {
  if (file_bytes_ == 0) return 1;
  return static_cast<double>(read_bytes_) / static_cast<double>(file_bytes_);
}

}  // namespace cairn::replay
