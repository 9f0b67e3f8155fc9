#include "server/tracing/otlp.hpp"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/hex.hpp"
#include "base/version.hpp"

namespace cairn {
namespace {

using nlohmann::ordered_json;

constexpr int kStatusError = 2;  // STATUS_CODE_ERROR

ordered_json text_attribute(std::string_view name, std::string_view value) {
  return {{"key", name}, {"value", {{"stringValue", value}}}};
}

// JSON numbers are doubles to many readers, so OTLP writes 64-bit integers as strings.
ordered_json number_attribute(std::string_view name, std::int64_t value) {
  return {{"key", name}, {"value", {{"intValue", std::to_string(value)}}}};
}

ordered_json attribute_body(const SpanAttribute& attribute) {
  if (const auto* number = std::get_if<std::int64_t>(&attribute.value)) {
    return number_attribute(attribute.name, *number);
  }
  return text_attribute(attribute.name, std::get<std::string>(attribute.value));
}

std::string unix_ns(TimePoint time, const ClockPair& clock) {
  const auto since = std::chrono::duration_cast<std::chrono::nanoseconds>(time - clock.now);
  const auto ns = std::chrono::nanoseconds(std::chrono::milliseconds(clock.unix_ms)) + since;
  return std::to_string(ns.count());
}

ordered_json span_body(const SpanRecord& span, const ClockPair& clock) {
  ordered_json body = {{"traceId", to_hex(span.trace_id)}, {"spanId", to_hex(span.span_id)}};
  if (span.parent_id != SpanId{}) body["parentSpanId"] = to_hex(span.parent_id);
  body["name"] = span.name;
  body["kind"] = static_cast<int>(span.kind);
  body["startTimeUnixNano"] = unix_ns(span.begun, clock);
  body["endTimeUnixNano"] = unix_ns(std::max(span.begun, span.ended), clock);
  ordered_json& attributes = body["attributes"] = ordered_json::array();
  for (const SpanAttribute& attribute : span.attributes) {
    attributes.push_back(attribute_body(attribute));
  }
  if (!span.failure.empty()) {
    body["status"] = {{"code", kStatusError}, {"message", span.failure}};
  }
  return body;
}

}  // namespace

std::string otlp_text(std::span<const SpanRecord> spans, const TraceResource& resource,
                      const ClockPair& clock) {
  ordered_json list = ordered_json::array();
  for (const SpanRecord& span : spans) list.push_back(span_body(span, clock));
  const ordered_json described = {
      {"attributes",
       {text_attribute("service.name", "cairn-server"), text_attribute("service.version", kVersion),
        text_attribute("service.instance.id", resource.instance)}}};
  const ordered_json scope = {{"name", "cairn"}, {"version", kVersion}};
  const ordered_json body = {
      {"resourceSpans",
       {{{"resource", described}, {"scopeSpans", {{{"scope", scope}, {"spans", list}}}}}}}};
  return body.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace cairn
