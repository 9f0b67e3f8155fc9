#include "server/tracing/span.hpp"

#include <utility>

#include "base/thread.hpp"

namespace cairn {

Span::Span(SpanSink& sink, SpanRecord record)
    : open_(std::make_unique<Open>(Open{sink, std::move(record)})) {
  open_->record.begun = sink.now();
}

Span& Span::operator=(Span&& other) noexcept {
  if (this == &other) return *this;
  end();
  open_ = std::move(other.open_);
  return *this;
}

Span Span::child(std::string_view name) const {
  if (open_ == nullptr) return {};
  return Span(open_->sink, {.trace_id = open_->record.trace_id,
                            .span_id = open_->sink.new_span_id(),
                            .parent_id = open_->record.span_id,
                            .name = std::string(name)});
}

void Span::set(std::string_view name, std::uint64_t value) {
  if (open_ == nullptr) return;
  open_->record.attributes.push_back({name, static_cast<std::int64_t>(value)});
}

void Span::set(std::string_view name, std::string_view value) {
  if (open_ == nullptr) return;
  open_->record.attributes.push_back({name, std::string(value)});
}

void Span::rename(std::string name) {
  if (open_ != nullptr) open_->record.name = std::move(name);
}

void Span::fail(std::string_view why) {
  if (open_ != nullptr) open_->record.failure = why;
}

void Span::end() noexcept {
  const auto ended = std::exchange(open_, nullptr);
  if (ended == nullptr) return;
  ended->record.ended = ended->sink.now();
  guarded("traces", [&] { ended->sink.add(std::move(ended->record)); });
}

}  // namespace cairn
