#pragma once

#include <string_view>

namespace cairn::http {

// What a traceparent field (W3C Trace Context) names, in lower-case hex; both empty where the field
// is none. Views of the field.
struct TraceContext {
  std::string_view trace_id = {};   // 32 digits
  std::string_view parent_id = {};  // 16 digits: the caller's span
};

TraceContext trace_context(std::string_view traceparent);

}  // namespace cairn::http
