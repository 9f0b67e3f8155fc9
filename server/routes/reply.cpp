#include "server/routes/reply.hpp"

#include "server/routes/problem.hpp"

namespace cairn {

void Reply::text(unsigned status, std::string json_text) {
  http::Response response;
  response.status = status;
  response.content_type = type_of(style_.form.format);
  response.body = write_text(std::move(json_text), style_.form.format);
  send(std::move(response));
}

void Reply::document(unsigned status, const ordered_json& document) {
  this->document(status, document, nullptr);
}

void Reply::document(unsigned status, const ordered_json& document,
                     std::shared_ptr<const FileDescriptor> file) {
  http::Response response;
  response.status = status;
  response.content_type = type_of(style_.form.format);
  response.body = write_document(document, style_.form.format);
  if (file != nullptr) response.files.push_back(std::move(file));
  send(std::move(response));
}

void Reply::located(unsigned status, std::string_view location, const ordered_json& document) {
  located_body(status, location, write_document(document, style_.form.format));
}

void Reply::located(unsigned status, std::string_view location, std::string json_text) {
  located_body(status, location, write_text(std::move(json_text), style_.form.format));
}

void Reply::located_body(unsigned status, std::string_view location, std::string body) {
  http::Response response;
  response.status = status;
  response.content_type = type_of(style_.form.format);
  response.headers.append("Location: ").append(location).append("\r\n");
  response.body = std::move(body);
  send(std::move(response));
}

void Reply::bytes(std::string packed) {
  http::Response response;
  response.content_type = kBytesType;
  response.body = std::move(packed);
  send(std::move(response));
}

void Reply::empty(unsigned status) {
  http::Response response;
  response.status = status;
  response.content_type = {};
  send(std::move(response));
}

void Reply::error(const Error& error) { send(cairn::problem(error)); }

void Reply::add_header(std::string_view name, std::string_view value) {
  headers_.reserve(headers_.size() + name.size() + value.size() + 4);
  headers_.append(name).append(": ").append(value).append("\r\n");
}

void Reply::send(http::Response&& response) {
  headers_ += response.headers;
  response.headers = std::move(headers_);
  if (style_.head_only && !response.announced_bytes) {
    response.announced_bytes = response.body.size();
    response.body.clear();
  }
  responder_(std::move(response));
}

}  // namespace cairn
