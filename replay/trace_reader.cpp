#include "replay/trace_reader.hpp"

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

namespace cairn::replay {
namespace {

using nlohmann::json;

// A non-negative whole number under that name; otherwise the reason.
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
  if (object.is_discarded())
    return Error{ErrorCode::malformed, "not JSON (of a table --columns names the columns)"};
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
  auto lines = LineReader::open(path);
  if (!lines) return std::move(lines).error();
  return std::unique_ptr<TraceReader>(new TraceReader(std::move(*lines)));
}

Result<std::optional<PromptRequest>> TraceReader::next() {
  const auto line = lines_.next();
  if (!line) return line.error();
  if (!line->has_value()) return std::optional<PromptRequest>();
  auto request = parse_line(**line);
  if (!request) return Error{request.error().code, lines_.where() + request.error().detail};
  return std::optional<PromptRequest>(std::move(*request));
}

}  // namespace cairn::replay
