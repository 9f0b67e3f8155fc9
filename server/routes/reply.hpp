#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/error.hpp"
#include "server/codec/media_type.hpp"
#include "server/http/message.hpp"

namespace cairn {

// How the client wants its response. A small value.
struct ReplyStyle {
  AnswerForm form = {};
  bool head_only = false;
};

// The response to one request. Send it exactly once, from any thread. If destroyed unsent, the
// client gets 500.
class Reply {
 public:
  Reply(http::Responder responder, ReplyStyle style)
      : responder_(std::move(responder)), style_(style) {}

  // Adds a header to whatever response is sent.
  void add_header(std::string_view name, std::string_view value);
  // Sends JSON text that was written by hand.
  void text(unsigned status, std::string json_text);
  void document(unsigned status, const ordered_json& document);
  // With a Location: the new resource, or the work in progress.
  void located(unsigned status, std::string_view location, const ordered_json& document);
  void located(unsigned status, std::string_view location, std::string json_text);
  void bytes(std::string packed);
  void empty(unsigned status);
  // Also sends an open file. Only if the request has passes_files.
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
