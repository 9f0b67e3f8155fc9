#include "tests/e2e/support/rest.hpp"

#include <unistd.h>

#include <array>
#include <cctype>
#include <cstdlib>
#include <optional>
#include <sstream>

#include "client/metrics_text.hpp"

namespace cairn::e2e {
namespace {

constexpr std::size_t kMaxShownBytes = 600;
constexpr std::string_view kProblemType = "application/problem+json";

// Names what a reply lacks to be a problem; empty if nothing.
std::string lack_of(const Reply& reply) {
  if (reply.header("Content-Type") != kProblemType) return "its type is not a problem's";
  const json body = json::parse(reply.body, nullptr, false);
  if (!body.is_object()) return "its body is no JSON object";
  for (const char* name : {"type", "title", "detail", "code"}) {
    const auto member = body.find(name);
    if (member == body.end() || !member->is_string() || member->get<std::string>().empty()) {
      return std::string("it has no ") + name;
    }
  }
  if (body.value("status", 0U) != reply.status) return "its status member differs";
  return {};
}

class IsProblem {
 public:
  using is_gtest_matcher = void;
  IsProblem(unsigned low, unsigned high, std::optional<std::string> code)
      : low_(low), high_(high), code_(std::move(code)) {}

  bool MatchAndExplain(const Reply& reply, std::ostream* out) const {
    const auto say = [out](const std::string& text) {
      if (out != nullptr) *out << text;
      return false;
    };
    if (reply.status < low_ || reply.status > high_) return say("another status");
    if (const std::string lack = lack_of(reply); !lack.empty()) return say(lack);
    return !code_ || reply.code() == *code_ || say("another code");
  }
  void DescribeTo(std::ostream* out) const {
    *out << "is a problem of status " << low_;
    if (high_ != low_) *out << " to " << high_;
    if (code_) *out << " and code " << *code_;
  }
  void DescribeNegationTo(std::ostream* out) const {
    *out << "not: ";
    DescribeTo(out);
  }

 private:
  unsigned low_;
  unsigned high_;
  std::optional<std::string> code_;
};

}  // namespace

std::string Reply::header(std::string_view name) const {
  const client::HttpResponse view{.status = status, .headers = headers, .body = {}};
  return std::string(view.header(name));
}

json Reply::document() const {
  json parsed = json::parse(body, nullptr, false);
  if (!parsed.is_discarded()) return parsed;
  ADD_FAILURE() << "no JSON: " << testing::PrintToString(*this);
  return nullptr;
}

std::string Reply::code() const {
  const json parsed = json::parse(body, nullptr, false);
  if (!parsed.is_object() || !parsed.contains("code")) return {};
  return parsed["code"].is_string() ? parsed["code"].get<std::string>() : std::string();
}

void PrintTo(const Reply& reply, std::ostream* out) {
  *out << "status " << reply.status << ", " << reply.body.size()
       << " bytes: " << reply.body.substr(0, kMaxShownBytes);
}

Rest::Rest(const client::Endpoint& endpoint, std::uint32_t timeout_ms)
    : endpoint_(endpoint), client_(endpoint, {.timeout_ms = timeout_ms}) {
  const char* const folder = std::getenv("CAIRN_EXCHANGES");
  if (folder == nullptr) return;
  std::ostringstream name;
  name << folder << "/" << ::getpid() << "-" << this;  // one at that address at a time
  exchanges_.open(name.str(), std::ios::app);
}

void Rest::note(const Request& request, const Reply& reply) {
  const std::string type = reply.header("Content-Type");
  json names = json::array();
  for (const auto& [name, value] : reply.headers) {
    std::string& lower = names.emplace_back(name).get_ref<std::string&>();
    for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  json exchange = {{"method", request.method},
                   {"path", request.target.substr(0, request.target.find('?'))},
                   {"status", reply.status},
                   {"type", type},
                   {"headers", std::move(names)}};
  if (!reply.body.empty()) {  // the body of a HEAD is empty
    if (type.find("json") != std::string::npos) exchange["body"] = json::parse(reply.body);
    if (type == "application/msgpack") exchange["body"] = json::from_msgpack(reply.body);
  }
  // A path may be invalid UTF-8.
  exchanges_ << exchange.dump(-1, ' ', false, json::error_handler_t::replace) << "\n" << std::flush;
}

Reply Rest::send(const Request& request) {
  std::vector<client::HttpHeader> headers;
  for (const auto& [name, value] : request.headers) headers.push_back({name, value});
  if (!request.content_type.empty()) headers.push_back({"Content-Type", request.content_type});
  const std::array<std::span<const std::byte>, 1> body = {std::as_bytes(std::span(request.body))};
  auto response = client_.request({.method = request.method,
                                   .target = request.target,
                                   .headers = headers,
                                   .body = body,
                                   .files = request.files});
  if (!response) return {0, response.error().code + ": " + response.error().detail, {}, {}};
  Reply reply{response->status, std::move(response->body), std::move(response->headers),
              std::move(response->files)};
  if (exchanges_.is_open()) note(request, reply);
  return reply;
}

Reply Rest::post(const std::string& target, const json& body) {
  return send({"POST", target, body.dump(), "application/json"});
}

Reply Rest::put(const std::string& target, const json& body, PassedFiles files) {
  return send({.method = "PUT",
               .target = target,
               .body = body.dump(),
               .content_type = "application/json",
               .files = std::move(files)});
}

Reply Rest::post_bytes(const std::string& target, const std::string& bytes) {
  return send({"POST", target, bytes, "application/octet-stream"});
}

Reply Rest::put_bytes(const std::string& target, const std::string& bytes) {
  return send({"PUT", target, bytes, "application/octet-stream"});
}

double Rest::metric(const std::string& series) {
  const Reply reply = get("/metrics");
  EXPECT_EQ(reply.status, 200U);
  return client::Metrics::parse(reply.body).value(series);
}

testing::Matcher<const Reply&> has_status(unsigned status) {
  return testing::Field("status", &Reply::status, status);
}

testing::Matcher<const Reply&> is_problem(unsigned status, const std::string& code) {
  return IsProblem(status, status, code);
}

testing::Matcher<const Reply&> is_problem(unsigned status) {
  return IsProblem(status, status, std::nullopt);
}

testing::Matcher<const Reply&> is_refusal() { return IsProblem(400, 499, std::nullopt); }

}  // namespace cairn::e2e
