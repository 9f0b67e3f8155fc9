#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/error.hpp"
#include "server/codec/media_type.hpp"
#include "server/http/message.hpp"

namespace cairn {

// How a request wants to be answered. A small value.
struct ReplyStyle {
  AnswerForm form = {};
  bool head_only = false;
};

// The answer to one request, given exactly once and from any thread. Destroyed unanswered, the
// client is told 500.
class Reply {
 public:
  Reply(http::Responder responder, ReplyStyle style)
      : responder_(std::move(responder)), style_(style) {}

  // Goes along with the answer, whichever it will be.
  void add_header(std::string_view name, std::string_view value);
  // JSON text that was written by hand.
  void text(unsigned status, std::string json_text);
  void document(unsigned status, const ordered_json& document);
  // With a Location: what was made, or what tells of the work under way.
  void located(unsigned status, std::string_view location, const ordered_json& document);
  void located(unsigned status, std::string_view location, std::string json_text);
  void bytes(std::string packed);
  void empty(unsigned status);
  // An open file that goes along with the document: only where the request passes_files.
  void document(unsigned status, const ordered_json& document,
                std::shared_ptr<const FileDescriptor> file);
  void error(const Error& error);
  void send(http::Response&& response);

  const ReplyStyle& style() const { return style_; }

 private:
  void located_body(unsigned status, std::string_view location, std::string body);

  http::Responder responder_;
  ReplyStyle style_;
  std::string headers_;
};

}  // namespace cairn
