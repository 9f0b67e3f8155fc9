#pragma once

#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/http_client.hpp"

namespace cairn::e2e {

using nlohmann::json;

struct Request {
  std::string method = "GET";
  std::string target = "/";
  std::string body = {};
  std::string content_type = {};  // empty: none is sent
  std::vector<std::pair<std::string, std::string>> headers = {};
  PassedFiles files = {};  // passed over a Unix socket
};

// A response of any kind.
struct Reply {
  unsigned status = 0;  // 0: no answer; the body then says why
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
  PassedFiles files = {};  // passed with the response

  bool ok() const { return status / 100 == 2; }
  std::string header(std::string_view name) const;
  // The body as JSON; a test failure and null if it is not JSON.
  json document() const;
  // The `code` of a problem; empty if there is none.
  std::string code() const;
};
void PrintTo(const Reply& reply, std::ostream* out);

// A kept-alive connection to a server. If $CAIRN_EXCHANGES is set, it writes the server's responses
// to its own file in that folder: tests/schema/exchanges.py compares them with the server's own
// document. Not thread-safe.
class Rest {
 public:
  explicit Rest(const client::Endpoint& endpoint, std::uint32_t timeout_ms = 60'000);

  Reply send(const Request& request);
  Reply get(const std::string& target) { return send({.target = target}); }
  Reply head(const std::string& target) { return send({.method = "HEAD", .target = target}); }
  Reply del(const std::string& target) { return send({.method = "DELETE", .target = target}); }
  Reply post(const std::string& target, const json& body = json::object());
  Reply put(const std::string& target, const json& body, PassedFiles files = {});
  // Plain bytes, as application/octet-stream.
  Reply post_bytes(const std::string& target, const std::string& bytes);
  Reply put_bytes(const std::string& target, const std::string& bytes);

  // A sample of /metrics by its name and labels, written as there; 0 if it is absent.
  double metric(const std::string& series);

  const client::Endpoint& endpoint() const { return endpoint_; }

 private:
  void note(const Request& request, const Reply& reply);

  client::Endpoint endpoint_;
  client::HttpClient client_;
  std::ofstream exchanges_;
};

// A reply of that status.
testing::Matcher<const Reply&> has_status(unsigned status);
// A whole RFC 9457 problem of that status and that `code`.
testing::Matcher<const Reply&> is_problem(unsigned status, const std::string& code);
// A whole problem of that status, whatever its code.
testing::Matcher<const Reply&> is_problem(unsigned status);
// A whole problem of some 4xx status.
testing::Matcher<const Reply&> is_refusal();

}  // namespace cairn::e2e
