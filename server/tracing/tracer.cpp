#include "server/tracing/tracer.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "base/hex.hpp"
#include "server/http/trace_context.hpp"

namespace cairn {
namespace {

constexpr std::string_view kPath = "/v1/traces";
// Spans of one request to the collector: about 250 KiB.
constexpr std::size_t kBatch = 512;
// Above it new spans are dropped: about 4 MiB, and eight batches for a collector that restarts.
constexpr std::size_t kMaxWaiting = 8 * kBatch;
constexpr std::chrono::milliseconds kPeriod{1'000};
// A stop waits this long for a collector that hangs.
constexpr std::uint32_t kTimeoutMs = 2'000;
constexpr std::chrono::milliseconds kLongestPause{30'000};

// Whether the collector may take the same spans later, by the specification of OTLP/HTTP.
bool may_pass(unsigned status) {
  return status == 0 || status == 429 || status == 502 || status == 503 || status == 504;
}

}  // namespace

Result<TraceTarget> read_trace_target(std::string_view url) {
  const auto scheme = url.find("://");
  const auto slash = scheme == std::string_view::npos ? scheme : url.find('/', scheme + 3);
  auto endpoint = client::Endpoint::parse(url.substr(0, slash));
  if (!endpoint) return std::move(endpoint).error();
  std::string path(slash == std::string_view::npos ? "" : url.substr(slash));
  while (path.ends_with('/')) path.pop_back();
  if (!path.ends_with(kPath)) path += kPath;
  const bool is_printable = std::ranges::all_of(path, [](char c) { return c > ' ' && c < '\x7f'; });
  if (!is_printable) {
    return Error{ErrorCode::malformed, "the path of the URL has a character that it must not have"};
  }
  return TraceTarget{.endpoint = std::move(*endpoint), .path = std::move(path)};
}

Tracer::Tracer(Options options, const Clock& clock, Logger& log)
    : options_(std::move(options)),
      clock_(clock),
      log_(log),
      client_(options_.target.endpoint, {.timeout_ms = kTimeoutMs}),
      thread_("traces", [this](const std::stop_token& stop) { work(stop); }) {}

Tracer::~Tracer() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.request_stop();
  thread_.join();
}

Span Tracer::begin(std::string_view traceparent, bool is_probe) {
  const http::TraceContext caller = http::trace_context(traceparent);
  SpanRecord record{.kind = SpanKind::server};
  if (!caller.trace_id.empty()) {
    if (!caller.is_sampled) return {};
    from_hex(caller.trace_id, record.trace_id);
    from_hex(caller.parent_id, record.parent_id);
    record.span_id = new_span_id();
    return Span(*this, std::move(record));
  }
  if (is_probe) return {};
  {
    MutexLock lock(mutex_);
    constexpr double kRange = 18'446'744'073'709'551'616.0;  // 2^64
    if (static_cast<double>(random_.next_u64()) >= options_.sample * kRange) return {};
    random_.fill(record.trace_id);
    random_.fill(record.span_id);
  }
  return Span(*this, std::move(record));
}

SpanId Tracer::new_span_id() {
  SpanId id;
  MutexLock lock(mutex_);
  random_.fill(id);
  return id;
}

void Tracer::add(SpanRecord&& span) {
  MutexLock lock(mutex_);
  if (waiting_.size() >= kMaxWaiting) {
    ++counts_.dropped;
    return;
  }
  waiting_.push_back(std::move(span));
  if (waiting_.size() == kBatch) changed_.notify_all();
}

Tracer::Counts Tracer::counts() const {
  MutexLock lock(mutex_);
  return counts_;
}

void Tracer::work(const std::stop_token& stop) {
  std::chrono::milliseconds pause = kPeriod;
  while (true) {
    std::vector<SpanRecord> batch;
    {
      MutexLock lock(mutex_);
      changed_.wait_for(mutex_, pause, [&] {
        // A pause after a failure is not cut short by more spans.
        return stopping_ || (pause == kPeriod && waiting_.size() >= kBatch);
      });
      const std::size_t count = std::min(waiting_.size(), kBatch);
      const auto end = waiting_.begin() + static_cast<std::ptrdiff_t>(count);
      batch.assign(std::move_iterator(waiting_.begin()), std::move_iterator(end));
      waiting_.erase(waiting_.begin(), end);
    }
    if (batch.empty()) {
      if (stop.stop_requested()) return;
      continue;
    }
    const bool taken = send(batch);
    pause = taken ? kPeriod : std::min(pause * 2, kLongestPause);
    if (taken) continue;
    MutexLock lock(mutex_);
    if (stop.stop_requested()) {
      counts_.failed += batch.size() + waiting_.size();
      return;
    }
    const std::size_t kept = std::min(batch.size(), kMaxWaiting - waiting_.size());
    counts_.dropped += batch.size() - kept;
    waiting_.insert(waiting_.begin(),
                    std::move_iterator(batch.end() - static_cast<std::ptrdiff_t>(kept)),
                    std::move_iterator(batch.end()));
  }
}

// Returns false if the spans may be sent again later.
bool Tracer::send(const std::vector<SpanRecord>& spans) {
  const std::string text = otlp_text(spans, {.instance = options_.instance}, clock_pair());
  const std::span<const std::byte> body = std::as_bytes(std::span(text));
  constexpr std::array<client::HttpHeader, 1> kHeaders = {{{"Content-Type", "application/json"}}};
  const auto answer = client_.request({.method = "POST",
                                       .target = options_.target.path,
                                       .headers = kHeaders,
                                       .body = std::span(&body, 1)});
  const unsigned status = answer ? answer->status : 0;
  const bool is_taken = status >= 200 && status < 300;
  std::optional<std::string> failure;
  if (!answer) failure = answer.error().detail;
  if (answer && !is_taken) failure = "it answered " + std::to_string(status);
  if (failure && failure != last_failure_) {
    log_.warning("the trace collector does not take spans", {{"why", *failure}});
  }
  if (!failure && last_failure_) log_.info("the trace collector takes spans again");
  last_failure_ = failure;
  if (failure && may_pass(status)) return false;
  MutexLock lock(mutex_);
  (is_taken ? counts_.exported : counts_.failed) += spans.size();
  return true;
}

// The same pair as long as the clocks agree, so that the spans of a trace fit together.
ClockPair Tracer::clock_pair() {
  constexpr std::chrono::milliseconds kMostApart{20};
  const ClockPair now{.now = clock_.now(), .unix_ms = clock_.unix_ms()};
  if (pair_) {
    const auto by_pair = std::chrono::milliseconds(pair_->unix_ms) + (now.now - pair_->now);
    const auto apart = by_pair - std::chrono::milliseconds(now.unix_ms);
    if (apart > -kMostApart && apart < kMostApart) return *pair_;
  }
  pair_ = now;
  return now;
}

}  // namespace cairn
