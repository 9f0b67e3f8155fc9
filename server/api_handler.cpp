#include "server/api_handler.hpp"

#include <algorithm>
#include <array>
#include <exception>

#include "server/codec/media_type.hpp"
#include "server/http/trace_context.hpp"
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

constexpr std::array<std::string_view, 8> kMethodLabels = {"GET",   "HEAD",   "PUT",     "POST",
                                                           "PATCH", "DELETE", "OPTIONS", "OTHER"};

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

bool has_body(const http::RequestHead& head) {
  return head.chunked || head.content_length.value_or(0) > 0;
}

// Of a body that there is.
Result<> check_type(routes::BodyKind kind, std::string_view content_type) {
  if (kind == routes::BodyKind::streamed) return check_bytes_type(content_type);
  if (kind == routes::BodyKind::packed && is_bytes_type(content_type)) return {};
  CAIRN_TRY(body_format(content_type));
  return {};
}

// Whether requests of that method and label are told of in the log: what changes a cache, and what
// only an administrator may do.
bool is_audited(http::Method method, std::size_t label) {
  static const std::vector<std::array<bool, kMethodLabels.size()>> audited = [] {
    const auto paths = router().paths();
    std::vector<std::array<bool, kMethodLabels.size()>> all(paths.size() + 1);
    for (const routes::Route& route : routes::table()) {
      const auto at = std::ranges::find(paths, route.pattern.path) - paths.begin();
      all[static_cast<std::size_t>(at)][static_cast<std::size_t>(route.pattern.method)] =
          route.role == Role::admin;
    }
    return all;
  }();
  return audited[label][static_cast<std::size_t>(method)];
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
  const std::string_view route = found ? routes::table()[found->route].pattern.path : kNoRoute;
  // A page of others is told nothing, also not whether what it asks for is there.
  if (auto own = service_.sites.check(head); !own) {
    return {.route = route, .body = problem(own.error())};
  }
  if (!found) return {.route = route, .body = no_route(head)};
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
  if (!(*caller)->may(route.role)) return lacks_role(**caller, route.role);
  CAIRN_TRY(routes::check_subject(service_, **caller, route, found.parameters));
  return caller;
}

http::BodyPlan ApiHandler::plan_body(const http::RequestHead& head, const Router::Match& found,
                                     const Caller* caller) {
  const routes::Route& route = routes::table()[found.route];
  const Phase phase = service_.phase.load(std::memory_order_relaxed);
  const bool serves = phase == Phase::serving || phase == Phase::leaving;
  if (!serves && !answers_always(route.pattern.path)) {
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
  if (has_body(head)) {
    if (auto taken = check_type(route.body, head.content_type); !taken) {
      return problem(taken.error());
    }
  }
  switch (route.body) {
    case routes::BodyKind::none:
      return http::CollectBody{kMaxIgnoredBodyBytes};
    case routes::BodyKind::structured:
    case routes::BodyKind::packed:
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
    service_.log.error("a request failed",
                       {{"route", route.pattern.path},
                        {"why", thrown.what()},
                        {"trace_id", http::trace_context(request.traceparent).trace_id}});
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

void ApiHandler::finished(const http::FinishedRequest& request) {
  const auto labels = route_labels();
  std::size_t index = 0;
  while (index + 1 < labels.size() && labels[index] != request.route) ++index;
  const http::Method method = request.head.method;
  service_.counters.record({.route = index,
                            .method = static_cast<std::size_t>(method),
                            .status = request.status,
                            .duration_us = request.duration_us});
  if (is_audited(method, index)) audit(request);
  if (service_.log.enabled(LogLevel::debug)) {
    const http::TraceContext trace = http::trace_context(request.head.traceparent);
    service_.log.debug("request", {{"method", to_string(method)},
                                   {"route", labels[index]},
                                   {"status", request.status},
                                   {"duration_us", request.duration_us},
                                   {"trace_id", trace.trace_id},
                                   {"parent_id", trace.parent_id}});
  }
}

void ApiHandler::audit(const http::FinishedRequest& request) const {
  const http::TraceContext trace = http::trace_context(request.head.traceparent);
  const http::ConnectionEnds* ends = request.head.ends;
  const bool by_socket = ends != nullptr && ends->uid.has_value();
  std::string who = "anonymous";
  if (request.caller != nullptr) {
    who = "token:" + request.caller->name();
  } else if (by_socket) {
    who = "uid:" + std::to_string(*ends->uid);
  }
  service_.log.info("audit", {{"who", who},
                              {"from", ends == nullptr ? std::string_view() : ends->remote},
                              {"method", to_string(request.head.method)},
                              {"path", request.head.path.substr(0, kMaxQuoted)},
                              {"status", request.status},
                              {"trace_id", trace.trace_id},
                              {"parent_id", trace.parent_id}});
}

}  // namespace cairn
