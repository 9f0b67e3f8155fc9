#include "server/codec/json_log.hpp"

#include <nlohmann/json.hpp>
#include <variant>

namespace cairn {
namespace {

using nlohmann::ordered_json;

struct LoggedValue {
  ordered_json operator()(std::string_view text) const {
    const auto [shown, is_cut] = log_text(text);
    return std::string(shown) + (is_cut ? "..." : "");
  }
  template <class Number>
  ordered_json operator()(Number number) const {
    return number;  // infinities and NaN become null
  }
};

}  // namespace

std::string json_log_line(const LogLine& line) {
  ordered_json document = {{"time", log_time(line.unix_ms)},
                           {"level", to_string(line.level)},
                           {"msg", LoggedValue()(line.message)}};
  for (const LogField& field : line.fields) {
    document[std::string(field.name)] = std::visit(LoggedValue(), field.value);
  }
  // ASCII only, so that a line cannot control a terminal.
  return document.dump(-1, ' ', /*ensure_ascii=*/true, ordered_json::error_handler_t::replace);
}

}  // namespace cairn
