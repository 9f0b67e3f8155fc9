#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/mutex.hpp"
#include "base/random.hpp"
#include "base/result.hpp"
#include "base/thread.hpp"
#include "client/http_client.hpp"
#include "server/tracing/otlp.hpp"
#include "server/tracing/span.hpp"

namespace cairn {

struct TracingSettings {
  std::string otlp_endpoint = {};  // empty: nothing is traced
  // The share of requests without a caller's trace that begin one. A request that comes with a
  // traceparent is traced if its caller's span is.
  double sample = 1.0;
};

// Where spans go: an endpoint of OTLP over HTTP.
struct TraceTarget {
  client::Endpoint endpoint;
  std::string path;  // "/v1/traces" follows the endpoint's path, unless that ends with it
};
// Error: malformed.
Result<TraceTarget> read_trace_target(std::string_view url);

// Decides which requests are traced, and sends their spans to a collector from a separate thread.
// Nobody waits for the collector: what it does not take in time is dropped and counted.
// Thread-safe.
class Tracer final : public SpanSink {
 public:
  struct Options {
    TraceTarget target;
    double sample = 1.0;
    std::string instance;
  };
  // Spans by what became of them.
  struct Counts {
    std::uint64_t exported = 0;
    std::uint64_t dropped = 0;  // too many waited
    std::uint64_t failed = 0;   // the collector did not take them
  };

  // Borrows the clock and the log.
  Tracer(Options options, const Clock& clock, Logger& log);
  // Tries once to send what waits.
  ~Tracer() override;

  // The span of a request; empty if it is not traced. The ids come from `traceparent` if it is
  // valid, and the name is set later. `is_probe`: traced only if the caller's span is.
  Span begin(std::string_view traceparent, bool is_probe);
  Counts counts() const;

  SpanId new_span_id() override;
  TimePoint now() const override { return clock_.now(); }
  void add(SpanRecord&& span) override;

 private:
  void work(const std::stop_token& stop);
  bool send(const std::vector<SpanRecord>& spans);
  ClockPair clock_pair();

  const Options options_;
  const Clock& clock_;
  Logger& log_;
  client::HttpClient client_;                // used by the thread
  std::optional<ClockPair> pair_;            // used by the thread
  std::optional<std::string> last_failure_;  // used by the thread
  mutable Mutex mutex_;
  Condition changed_;
  std::vector<SpanRecord> waiting_ CAIRN_GUARDED_BY(mutex_);
  bool stopping_ CAIRN_GUARDED_BY(mutex_) = false;
  RandomBytes random_ CAIRN_GUARDED_BY(mutex_);
  Counts counts_ CAIRN_GUARDED_BY(mutex_);
  Thread thread_;
};

}  // namespace cairn
