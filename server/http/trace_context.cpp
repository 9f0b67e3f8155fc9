#include "server/http/trace_context.hpp"

namespace cairn::http {
namespace {

// VERSION-TRACE_ID-PARENT_ID-FLAGS
constexpr std::size_t kVersion0Bytes = 2 + 1 + 32 + 1 + 16 + 1 + 2;

bool is_hex(std::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool is_id(std::string_view text) {
  return is_hex(text) && text.find_first_not_of('0') != std::string_view::npos;
}

}  // namespace

TraceContext trace_context(std::string_view traceparent) {
  if (traceparent.size() < kVersion0Bytes) return {};
  const std::string_view version = traceparent.substr(0, 2);
  const std::string_view trace_id = traceparent.substr(3, 32);
  const std::string_view parent_id = traceparent.substr(36, 16);
  const std::string_view flags = traceparent.substr(53, 2);
  const bool dashes = traceparent[2] == '-' && traceparent[35] == '-' && traceparent[52] == '-';
  // Later versions may continue after another dash.
  const bool ends = traceparent.size() == kVersion0Bytes ||
                    (version != "00" && traceparent[kVersion0Bytes] == '-');
  const bool is_valid = dashes && ends && is_hex(version) && version != "ff" && is_hex(flags) &&
                        is_id(trace_id) && is_id(parent_id);
  if (!is_valid) return {};
  constexpr std::string_view kOdd = "13579bdf";  // the lowest bit of the flags
  return {.trace_id = trace_id,
          .parent_id = parent_id,
          .is_sampled = kOdd.find(flags[1]) != std::string_view::npos};
}

}  // namespace cairn::http
