#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "server/tracing/span.hpp"

namespace cairn {

// The maker of the spans.
struct TraceResource {
  std::string instance;  // service.instance.id
};

// A moment on both clocks, from which the spans' times follow.
struct ClockPair {
  TimePoint now;
  std::int64_t unix_ms = 0;
};

// The body of a request to an OpenTelemetry collector: ExportTraceServiceRequest in the JSON form
// of OTLP 1.x (ids in hex, times in nanoseconds as strings). Text that is not UTF-8 is replaced.
std::string otlp_text(std::span<const SpanRecord> spans, const TraceResource& resource,
                      const ClockPair& clock);

}  // namespace cairn
