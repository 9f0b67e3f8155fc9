#include "server/api_handler.hpp"

#include <algorithm>
#include <array>
#include <exception>

#include "server/codec/media_type.hpp"
#include "server/routes/subject.hpp"
#include "server/status.hpp"

namespace cairn {
namespace {

// What is sent with a request that has no use for a body is skipped, up to this.
constexpr std::uint64_t kMaxIgnoredBodyBytes = 64 * 1024;
// Of a path that is logged or answered.
constexpr std::size_t kMaxQuoted = 128;
// Requests that found no route are counted under this label, whatever their path.
constexpr std::string_view kNoRoute = "none";

constexpr std::array<std::string_view, 7> kMethodLabels = {"GET",    "HEAD",    "PUT",  "POST",
                                                           "DELETE", "OPTIONS", "OTHER"};

const Router& router() {
  static const std::vector<RoutePattern> patterns = [] {
    std::vector<RoutePattern> all;
    for (const routes::Route& route : routes::table()) all.push_back(route.pattern);
    return all;
  }();
  static const Router router(patterns);
  return router;
}

// The routes that people and their tools ask whether the server lives: answered in every phase.
bool answers_always(std::string_view path) {
  return path == "/healthz" || path == "/readyz" || path == "/metrics" || path == "/v1/system";
}

ReplyStyle style_of(const http::RequestHead& head) {
  return {.format = answer_format(head.accept), .head_only = head.method == http::Method::head};
}

}  // namespace

std::span<const std::string_view> ApiHandler::route_labels() {
  static const std::vector<std::string_view> labels = [] {
    std::vector<std::string_view> all(router().paths().begin(), router().paths().end());
    all.push_back(kNoRoute);
    return all;
  }();
  return labels;
}

std::span<const std::string_view> ApiHandler::method_labels() { return kMethodLabels; }

ApiHandler::ApiHandler(Service& service) : service_(service) {}

http::Response ApiHandler::no_route(const http::RequestHead& head) const {
  const Router::Miss miss = router().explain(head.path);
  const std::string path(head.path.substr(0, kMaxQuoted));
  http::Response response;
  if (miss.malformed) {
    response = problem(
        {ErrorCode::malformed, "the path has a '%' without two hex digits: '" + path + "'"});
  } else if (miss.known_path) {
    response =
        problem({ErrorCode::method_not_allowed,
                 "'" + path + "' takes " + miss.allow + ", not " +
                     (head.method == http::Method::other ? std::string("any other method")
                                                         : std::string(to_string(head.method)))});
    response.headers += "Allow: " + miss.allow + "\r\n";
  } else {
    response = problem({ErrorCode::not_found, "there is nothing at '" + path + "'"});
  }
  return response;
}

http::RequestPlan ApiHandler::begin(const http::RequestHead& head) {
  const auto found = router().find(head.method, head.path);
  if (!found) return {.route = kNoRoute, .body = no_route(head)};
  const std::string_view route = routes::table()[found->route].pattern.path;
  auto caller = admit(head, *found);
  if (!caller) return {.route = route, .body = problem(caller.error())};
  http::BodyPlan body = plan_body(head, *found, caller->get());
  return {.route = route, .body = std::move(body), .caller = std::move(*caller)};
}

Result<std::shared_ptr<const Caller>> ApiHandler::admit(const http::RequestHead& head,
                                                        const Router::Match& found) const {
  const routes::Route& route = routes::table()[found.route];
  if (service_.gate == nullptr || route.role == Role::none) return nullptr;
  auto caller = service_.gate->admit(head);
  if (!caller) return caller;
  if (!(*caller)->may(route.role)) {
    return Error{ErrorCode::forbidden, "this takes the role '" +
                                           std::string(to_string(route.role)) + "'; the token '" +
                                           (*caller)->name() + "' has '" +
                                           std::string(to_string((*caller)->role())) + "'"};
  }
  CAIRN_TRY(routes::check_subject(service_, **caller, route, found.parameters));
  return caller;
}

http::BodyPlan ApiHandler::plan_body(const http::RequestHead& head, const Router::Match& found,
                                     const Caller* caller) {
  const routes::Route& route = routes::table()[found.route];
  const Phase phase = service_.phase.load(std::memory_order_relaxed);
  if (phase != Phase::serving && !answers_always(route.pattern.path)) {
    return problem({ErrorCode::unavailable, phase == Phase::starting ? "the server is starting"
                                                                     : "the server is draining"});
  }
  if (service_.reserve.is_short() && !answers_always(route.pattern.path)) {
    return problem({ErrorCode::unavailable, "the server is short of memory"});
  }
  if (route.body != routes::BodyKind::none) {
    if (auto taken = check_content_encoding(head.content_encoding); !taken) {
      http::Response response = problem(taken.error());
      response.headers += "Accept-Encoding: identity\r\n";  // RFC 9110, 12.5.3
      return response;
    }
  }
  switch (route.body) {
    case routes::BodyKind::none:
      return http::CollectBody{kMaxIgnoredBodyBytes};
    case routes::BodyKind::structured:
      return http::CollectBody{service_.limits.max_body_bytes};
    case routes::BodyKind::streamed:
      break;
  }
  // Streamed to where it stays, which is as long as the body: a length has to come first.
  if (head.chunked) {
    return refuse(411, {ErrorCode::wrong_length,
                        "the body is chunked; block bytes are taken with a Content-Length"});
  }
  const Call call{.head = head, .body = {}, .path = found.parameters, .caller = caller};
  return route.begin(service_, call, style_of(head));
}

void ApiHandler::handle(const http::Request& request, http::Responder respond) {
  const auto found = router().find(request.method, request.path);
  if (!found) return respond(no_route(request));
  const routes::Route& route = routes::table()[found->route];
  Reply reply(std::move(respond), style_of(request));
  const Call call{.head = request,
                  .body = request.body,
                  .path = found->parameters,
                  .caller = request.caller,
                  .files = request.files};
  try {
    route.handle(service_, call, std::move(reply));
  } catch (const std::exception& thrown) {
    // Out of memory, mostly. The reply was dropped, which answers 500.
    service_.log.error("a request failed", {{"route", route.pattern.path}, {"why", thrown.what()}});
  }
}

http::Response ApiHandler::refuse(unsigned status, const Error& why) {
  http::Response response = problem(why);
  // The machinery has statuses that no error of ours stands for (408, 411, 431, 505).
  response.status = status;
  response.body = problem_body(why, status);
  return response;
}

http::Response ApiHandler::failed(const Error& why) { return problem(why); }

void ApiHandler::finished(http::Method method, std::string_view route, unsigned status,
                          std::uint64_t duration_us) {
  const auto labels = route_labels();
  std::size_t index = 0;
  while (index + 1 < labels.size() && labels[index] != route) ++index;
  service_.counters.record({.route = index,
                            .method = static_cast<std::size_t>(method),
                            .status = status,
                            .duration_us = duration_us});
  if (service_.log.enabled(LogLevel::debug)) {
    service_.log.debug("request", {{"method", to_string(method)},
                                   {"route", labels[index]},
                                   {"status", status},
                                   {"duration_us", duration_us}});
  }
}

}  // namespace cairn
