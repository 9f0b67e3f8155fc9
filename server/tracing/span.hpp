#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/clock.hpp"

namespace cairn {

using TraceId = std::array<std::byte, 16>;
using SpanId = std::array<std::byte, 8>;

// As OpenTelemetry numbers them.
enum class SpanKind : std::uint8_t { internal = 1, server = 2 };

struct SpanAttribute {
  std::string_view name;  // static
  std::variant<std::int64_t, std::string> value;
};

// A span as it is exported.
struct SpanRecord {
  TraceId trace_id{};
  SpanId span_id{};
  SpanId parent_id{};  // zero: none
  std::string name = {};
  SpanKind kind = SpanKind::internal;
  TimePoint begun = {};
  TimePoint ended = {};
  std::vector<SpanAttribute> attributes = {};
  std::string failure = {};  // empty: none
};

// Takes spans that have ended. Thread-safe.
class SpanSink {
 public:
  virtual ~SpanSink() = default;
  virtual SpanId new_span_id() = 0;
  virtual TimePoint now() const = 0;
  virtual void add(SpanRecord&& span) = 0;
};

// A part of a traced request, from its creation to end() or its destruction. In a request that is
// not traced it is empty, and nothing below does anything. Must end before its sink. For one thread
// at a time.
class Span {
 public:
  Span() = default;
  // A root, or the continuation of a caller's span: `record` has the ids and the name.
  Span(SpanSink& sink, SpanRecord record);
  ~Span() { end(); }
  Span(Span&&) noexcept = default;
  Span& operator=(Span&& other) noexcept;

  explicit operator bool() const { return open_ != nullptr; }
  // A part of this part, which may outlive it.
  Span child(std::string_view name) const;
  // Names are static.
  void set(std::string_view name, std::uint64_t value);
  void set(std::string_view name, std::string_view value);
  void rename(std::string name);
  void fail(std::string_view why);
  void end() noexcept;

 private:
  struct Open {
    SpanSink& sink;
    SpanRecord record;
  };
  std::unique_ptr<Open> open_;
};

}  // namespace cairn
