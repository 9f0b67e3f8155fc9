// Events as they come, until the server or the user ends it.
#include <array>
#include <iostream>
#include <string>

#include "ctl/command.hpp"

namespace cairn::ctl {
namespace {

// Prints the data of Server-Sent Events, one a line, with the event's name and number in it.
class EventPrinter {
 public:
  explicit EventPrinter(std::ostream& out) : out_(out) {}

  // Returns false if nobody reads the output any more.
  bool take(std::string_view text) {
    text_ += text;
    std::size_t begin = 0;
    for (std::size_t end; (end = text_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      take_line(std::string_view(text_).substr(begin, end - begin));
    }
    text_.erase(0, begin);
    return static_cast<bool>(out_);
  }

 private:
  void take_line(std::string_view line) {
    if (line.ends_with('\r')) line.remove_suffix(1);
    // Events before this one are not in the stream.
    if (line == ": listening") std::cerr << "cairnctl: listening" << std::endl;
    if (line.starts_with("id: ")) id_ = line.substr(4);
    if (line.starts_with("event: ")) name_ = line.substr(7);
    if (!line.starts_with("data: ")) return;
    json event = {{"event", name_}, {"id", id_}};
    const json data = json::parse(line.substr(6), nullptr, /*allow_exceptions=*/false);
    if (data.is_object()) event.update(data);
    out_ << event.dump() << std::endl;  // a reader wants each at once
  }

  std::ostream& out_;
  std::string text_;
  std::string id_;
  std::string name_;
};

}  // namespace

Answer<> follow_events(const Session& session) {
  static constexpr std::array<std::string_view, 1> kQuery = {"cache"};
  EventPrinter printer(session.out);
  return session.client.stream("/v1/events" + session.query(kQuery),
                               [&printer](std::string_view text) { return printer.take(text); });
}

}  // namespace cairn::ctl
