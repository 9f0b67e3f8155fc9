#pragma once

#include <string_view>

namespace cairn::http {

// The ids in a traceparent field (W3C Trace Context), in lower-case hex; both empty if it is
// invalid. Views into the field.
struct TraceContext {
  std::string_view trace_id = {};   // 32 digits
  std::string_view parent_id = {};  // 16 digits: the caller's span
  bool is_sampled = false;          // whether the caller records the trace
};

TraceContext trace_context(std::string_view traceparent);

}  // namespace cairn::http
