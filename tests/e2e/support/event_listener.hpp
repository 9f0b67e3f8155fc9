#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/e2e/support/raw_connection.hpp"
#include "tests/e2e/support/rest.hpp"

namespace cairn::e2e {

struct SseEvent {
  std::string id;
  std::string name;
  json data;
};

// A client of /v1/events.
class EventListener {
 public:
  EventListener(const client::Endpoint& endpoint, const std::string& query,
                const std::vector<std::string>& fields = {})
      : connection_(endpoint) {
    connection_.send(head_text("GET", "/v1/events" + query, fields));
    const std::size_t end = wait_for("\r\n\r\n");
    head_ = raw_.substr(0, end);
    raw_.erase(0, end);
    while (text_.find("\n\n") == std::string::npos && more()) {
    }
    text_.erase(0, text_.find("\n\n") + 2);  // the greeting
  }

  const std::string& head() const { return head_; }
  // The next event; an empty name if none comes.
  SseEvent next() {
    while (true) {
      const std::size_t end = text_.find("\n\n");
      if (end == std::string::npos) {
        if (!more()) return {};
        continue;
      }
      const std::string block = text_.substr(0, end + 1);
      text_.erase(0, end + 2);
      if (block.starts_with(":")) continue;
      return {.id = field(block, "id: "),
              .name = field(block, "event: "),
              .data = json::parse(field(block, "data: "))};
    }
  }

 private:
  static std::string field(const std::string& block, const std::string& name) {
    const std::size_t at = block.find(name);
    if (at == std::string::npos) return "";
    return block.substr(at + name.size(), block.find('\n', at) - at - name.size());
  }
  std::size_t wait_for(const std::string& end) {
    while (raw_.find(end) == std::string::npos) {
      const std::string bytes = connection_.receive_some();
      if (bytes.empty()) return raw_.size();
      raw_ += bytes;
    }
    return raw_.find(end) + end.size();
  }
  // Takes one chunk out of raw_; false at the end.
  bool more() {
    const std::size_t line = wait_for("\r\n");
    if (line == raw_.size() && !raw_.ends_with("\r\n")) return false;
    const std::size_t bytes = std::stoul(raw_.substr(0, line), nullptr, 16);
    while (raw_.size() < line + bytes + 2) {
      const std::string more_bytes = connection_.receive_some();
      if (more_bytes.empty()) return false;
      raw_ += more_bytes;
    }
    text_ += raw_.substr(line, bytes);
    raw_.erase(0, line + bytes + 2);
    return bytes > 0;
  }

  RawConnection connection_;
  std::string head_;
  std::string raw_;   // as received
  std::string text_;  // without its chunks
};

}  // namespace cairn::e2e
