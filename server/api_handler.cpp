#include "server/api_handler.hpp"

#include <algorithm>
#include <array>
#include <exception>
#include <optional>

#include "server/codec/ids.hpp"
#include "server/codec/media_type.hpp"
#include "server/codec/query.hpp"
#include "server/http/trace_context.hpp"
#include "server/routes/common.hpp"
#include "server/routes/problem.hpp"
#include "server/routes/table.hpp"
#include "server/routing/router.hpp"

namespace cairn {
namespace {

// A body that the route does not use is skipped up to this size.
constexpr std::uint64_t kMaxIgnoredBodyBytes = 64 * 1024;
// Longer paths are cut in logs and responses.
constexpr std::size_t kMaxQuoted = 128;
// The label for requests without a route, whatever their path.
constexpr std::string_view kNoRoute = "none";
// Limits of the log lines about accepted requests without a name.
constexpr std::uint32_t kAnonymousBurst = 5'000;
constexpr std::uint32_t kAnonymousPerSecond = 1'000;

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

// Routes that report the server's state. They are served in every phase.
bool is_always_answered(std::string_view path) {
  return path == "/healthz" || path == "/readyz" || path == "/metrics" || path == "/v1/system";
}

bool has_body(const http::RequestHead& head) {
  return head.chunked || head.content_length.value_or(0) > 0;
}

// Checks the type of a body; call it only if there is one.
Result<> check_type(routes::BodyKind kind, std::string_view content_type) {
  if (kind == routes::BodyKind::streamed) return check_bytes_type(content_type);
  if (kind == routes::BodyKind::packed && is_bytes_type(content_type)) return {};
  CAIRN_TRY(body_format(content_type));
  return {};
}

ReplyStyle style_of(const http::RequestHead& head) {
  return {.form = answer_form(head.accept), .head_only = head.method == http::Method::head};
}

http::Response no_route(const http::RequestHead& head) {
  const Router::Miss miss = router().explain(head.path);
  const std::string path(head.path.substr(0, kMaxQuoted));
  if (miss.malformed) {
    return problem(
        {ErrorCode::malformed, "the path has a '%' without two hex digits: '" + path + "'"});
  }
  if (!miss.known_path) {
    return problem({ErrorCode::not_found, "there is nothing at '" + path + "'"});
  }
  http::Response response =
      problem({ErrorCode::method_not_allowed,
               "'" + path + "' takes " + miss.allow + ", not " +
                   (head.method == http::Method::other ? std::string("any other method")
                                                       : std::string(to_string(head.method)))});
  response.headers += "Allow: " + miss.allow + "\r\n";
  return response;
}

http::Response refusal(unsigned status, const Error& why) {
  http::Response response = problem(why);
  // The HTTP layer uses statuses that no ErrorCode has (408, 411, 431, 505).
  response.status = status;
  response.body = problem_body(why, status);
  return response;
}

// The cache of what the path names; nullopt if that does not exist.
std::optional<std::string> cache_named(const Service& service, std::string_view pattern,
                                       const PathParameters& path) {
  if (pattern.starts_with("/v1/caches/{cache}")) return std::string(path[0]);
  if (pattern.starts_with("/v1/leases/{lease}")) {
    const auto lease = lease_from(path[0]);
    if (!lease) return std::nullopt;
    auto cache = service.manager.cache_of(*lease);
    if (!cache) return std::nullopt;
    return (*cache)->config().name;
  }
  const auto transfer = transfer_from(path[0]);
  if (!transfer) return std::nullopt;
  auto cache = service.manager.cache_name_of(*transfer);
  if (!cache) return std::nullopt;
  return std::move(*cache);
}

// Returns forbidden if the request is about a cache that the caller may not touch. Passes what does
// not exist: its handler returns the error.
Result<> check_subject(const Service& service, const Caller& caller, const routes::Route& route,
                       const PathParameters& path) {
  if (!caller.is_confined() || route.subject == routes::Subject::filtered) return {};
  const std::string_view pattern = route.pattern.path;
  const bool names_one = pattern.starts_with("/v1/caches/{cache}") ||
                         pattern.starts_with("/v1/leases/{lease}") ||
                         pattern.starts_with("/v1/transfers/{transfer}");
  if (!names_one) {
    return Error{ErrorCode::forbidden, "this request is about all caches; the token '" +
                                           caller.name() + "' may touch only some"};
  }
  const auto cache = cache_named(service, pattern, path);
  if (!cache || caller.may_touch(*cache)) return {};
  return Error{ErrorCode::forbidden, "the token '" + caller.name() + "' may not touch this cache"};
}

// The requests of one connection.
class ApiSession final : public http::Session {
 public:
  explicit ApiSession(Service& service) : service_(service) {}

  http::BodyPlan begin(const http::RequestHead& head) override;
  void handle(http::Body body, http::Responder respond) override;
  void finished(const http::FinishedRequest& request) override;
  bool stays_open() const override { return connection_->engine_memories > 0; }
  bool answers_always(const http::RequestHead& head) const override {
    return is_always_answered(head.path);
  }

 private:
  // Returns the caller (null if no token is needed), or an error if it may not make the request.
  Result<std::shared_ptr<const Caller>> admit(const http::RequestHead& head,
                                              const PathParameters& path) const;
  // For the request in progress, whose body is streamed.
  Result<std::unique_ptr<http::Upload>> open_upload();
  // Refuses any query if the route takes none.
  Result<> check_query() const;
  void answer(Reply reply);
  // Why the request in progress is refused whatever its body is; nullopt if it is not.
  std::optional<http::Response> refused() const;
  // The name for log lines about the request: of the presented token, or of the user at the other
  // end of a Unix socket. Empty if neither is known.
  std::string who(const http::RequestHead& head) const;
  // How often such a request may be logged. All admitted requests with a name are logged; others
  // cannot flood the log.
  LogRate rate_of(unsigned status, bool is_named, const std::string& reason) const;
  void begin_span(const http::RequestHead& head);
  void end_span(const http::FinishedRequest& request);
  // Logs who changed something, or tried to.
  void audit(const http::FinishedRequest& request) const;

  Service& service_;
  const std::shared_ptr<EngineConnection> connection_ = std::make_shared<EngineConnection>();
  // The request in progress.
  const routes::Route* route_ = nullptr;  // null: none
  std::size_t label_ = router().paths().size();
  std::optional<Call> call_;
  Span span_;
};

http::BodyPlan ApiSession::begin(const http::RequestHead& head) {
  auto found = router().find(head.method, head.path);
  if (found) {
    route_ = &routes::table()[found->route];
    label_ = found->path;
  }
  begin_span(head);
  // Check this first: a page of another site must not learn even whether a resource exists.
  if (auto own = service_.sites.check(head); !own) return problem(own.error());
  if (!found) return no_route(head);
  auto caller = admit(head, found->parameters);
  if (!caller) return problem(caller.error());
  call_.emplace(Call{.head = head,
                     .path = std::move(found->parameters),
                     .style = style_of(head),
                     .caller = std::move(*caller),
                     .connection = &connection_,
                     .span = &span_});
  if (auto refusal = refused()) return std::move(*refusal);
  switch (route_->body) {
    case routes::BodyKind::none:
      return http::CollectBody{kMaxIgnoredBodyBytes};
    case routes::BodyKind::structured:
    case routes::BodyKind::packed:
      return http::CollectBody{.limit_bytes = service_.limits.max_body_bytes,
                               .takes_files = route_->takes_files};
    case routes::BodyKind::streamed:
      break;
  }
  // The bytes go straight to their slots, so the length must be known first.
  if (head.chunked) {
    return refusal(411, {ErrorCode::wrong_length,
                         "the body is chunked; block bytes are taken with a Content-Length"});
  }
  auto upload = open_upload();
  if (!upload) return problem(upload.error());
  return std::move(*upload);
}

Result<std::unique_ptr<http::Upload>> ApiSession::open_upload() {
  auto cache = routes::cache_of(service_, *call_);
  if (!cache) return std::move(cache).error();
  CAIRN_TRY(check_query());
  return route_->begin(service_, *call_, std::move(*cache));
}

Result<> ApiSession::check_query() const {
  if (route_->takes_query || call_->head.query.empty()) return {};
  return Query(call_->head.query).finish();
}

Result<std::shared_ptr<const Caller>> ApiSession::admit(const http::RequestHead& head,
                                                        const PathParameters& path) const {
  if (service_.gate == nullptr || route_->role == Role::none) return nullptr;
  auto caller = service_.gate->admit(head);
  if (!caller) return caller;
  if (!(*caller)->may(route_->role)) return lacks_role(**caller, route_->role);
  CAIRN_TRY(check_subject(service_, **caller, *route_, path));
  return caller;
}

std::optional<http::Response> ApiSession::refused() const {
  const http::RequestHead& head = call_->head;
  const Phase phase = service_.phase.load(std::memory_order_relaxed);
  const bool serves = phase == Phase::serving || phase == Phase::leaving;
  if (!serves && !is_always_answered(route_->pattern.path)) {
    return problem({ErrorCode::unavailable, phase == Phase::starting ? "the server is starting"
                                                                     : "the server is draining"});
  }
  const bool is_admin = call_->caller != nullptr && call_->caller->may(Role::admin);
  if (head.beyond_limit && !is_admin && !is_always_answered(head.path)) {
    return problem({ErrorCode::unavailable, "the server has as many connections as it may have"});
  }
  if (service_.reserve.is_short() && !is_always_answered(route_->pattern.path)) {
    return problem({ErrorCode::unavailable, "the server is short of memory"});
  }
  if (route_->body != routes::BodyKind::none) {
    if (auto taken = check_content_encoding(head.content_encoding); !taken) {
      http::Response response = problem(taken.error());
      response.headers += "Accept-Encoding: identity\r\n";  // RFC 9110, 12.5.3
      return response;
    }
  }
  if (has_body(head)) {
    if (auto taken = check_type(route_->body, head.content_type); !taken) {
      return problem(taken.error());
    }
  }
  return std::nullopt;
}

void ApiSession::handle(http::Body body, http::Responder respond) {
  call_->body = body.bytes;
  call_->files = std::move(body.files);
  call_->files_refused = body.files_refused;
  try {
    answer(Reply(std::move(respond), call_->style));
  } catch (const std::exception& thrown) {
    // Usually out of memory. The dropped reply sends 500.
    service_.log.log(LogLevel::error, "a request failed",
                     {{"route", route_->pattern.path},
                      {"why", thrown.what()},
                      {"trace_id", http::trace_context(call_->head.traceparent).trace_id}},
                     {.reason = route_->pattern.path});
  }
}

void ApiSession::answer(Reply reply) {
  const auto* on_cache = std::get_if<routes::HandleOnCache>(&route_->handle);
  std::shared_ptr<Cache> cache;
  if (on_cache != nullptr) {
    auto found = routes::cache_of(service_, *call_);
    if (!found) return reply.error(found.error());
    cache = std::move(*found);
  }
  if (auto taken = check_query(); !taken) return reply.error(taken.error());
  if (on_cache != nullptr) return (*on_cache)(service_, *call_, std::move(cache), std::move(reply));
  std::get<routes::Handle>(route_->handle)(service_, *call_, std::move(reply));
}

void ApiSession::finished(const http::FinishedRequest& request) {
  service_.counters.record({.route = label_,
                            .method = static_cast<std::size_t>(request.head.method),
                            .status = request.status,
                            .duration_us = request.duration_us});
  end_span(request);
  // Requests that change a cache, and those for administrators only.
  if (route_ != nullptr && route_->role == Role::admin) audit(request);
  if (service_.log.enabled(LogLevel::debug)) {
    const http::TraceContext trace = http::trace_context(request.head.traceparent);
    const bool is_named = call_ && call_->caller != nullptr;
    const std::string reason = std::to_string(request.status);
    service_.log.log(LogLevel::debug, "request",
                     {{"method", to_string(request.head.method)},
                      {"route", ApiHandler::route_labels()[label_]},
                      {"status", request.status},
                      {"duration_us", request.duration_us},
                      {"trace_id", trace.trace_id},
                      {"parent_id", trace.parent_id}},
                     rate_of(request.status, is_named, reason));
  }
  route_ = nullptr;
  label_ = router().paths().size();
  call_.reset();
}

void ApiSession::begin_span(const http::RequestHead& head) {
  if (service_.tracer == nullptr) return;
  span_ = service_.tracer->begin(head.traceparent, is_always_answered(head.path));
}

// Named as OpenTelemetry's conventions for HTTP say.
void ApiSession::end_span(const http::FinishedRequest& request) {
  if (!span_) return;
  const std::string_view method = to_string(request.head.method);
  const std::string_view route = ApiHandler::route_labels()[label_];
  span_.rename(std::string(method) + " " + std::string(route));
  span_.set("http.request.method", method);
  span_.set("http.route", route);
  span_.set("http.response.status_code", request.status);
  if (call_ && route.starts_with("/v1/caches/{cache}")) span_.set("cairn.cache", call_->path[0]);
  if (call_ && call_->caller != nullptr) span_.set("cairn.token", call_->caller->name());
  if (request.status == http::kStatusLost) span_.fail("the connection was lost");
  if (request.status >= 500) span_.fail("status " + std::to_string(request.status));
  span_.end();
}

std::string ApiSession::who(const http::RequestHead& head) const {
  std::shared_ptr<const Caller> caller = call_ ? call_->caller : nullptr;
  if (caller == nullptr && service_.gate != nullptr) caller = service_.gate->presented(head);
  if (caller != nullptr) return "token:" + caller->name();
  const bool by_socket = head.ends != nullptr && head.ends->uid.has_value();
  return by_socket ? "uid:" + std::to_string(*head.ends->uid) : "";
}

LogRate ApiSession::rate_of(unsigned status, bool is_named, const std::string& reason) const {
  if (call_ && is_named) return kEveryLine;
  if (call_ && status < 400) {
    return {.reason = "accepted", .burst = kAnonymousBurst, .per_s = kAnonymousPerSecond};
  }
  return {.reason = reason};
}

void ApiSession::audit(const http::FinishedRequest& request) const {
  const http::TraceContext trace = http::trace_context(request.head.traceparent);
  const http::ConnectionEnds* ends = request.head.ends;
  const std::string named = who(request.head);
  const std::string shown = named.empty() ? "anonymous" : named;
  const std::string reason = shown + " " + std::to_string(request.status);
  service_.log.log(LogLevel::info, "audit",
                   {{"who", shown},
                    {"from", ends == nullptr ? std::string_view() : ends->remote},
                    {"method", to_string(request.head.method)},
                    {"path", request.head.path.substr(0, kMaxQuoted)},
                    {"status", request.status},
                    {"trace_id", trace.trace_id},
                    {"parent_id", trace.parent_id}},
                   rate_of(request.status, !named.empty(), reason));
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

std::unique_ptr<http::Session> ApiHandler::open() { return std::make_unique<ApiSession>(service_); }

http::Response ApiHandler::refuse(unsigned status, const Error& why) {
  return refusal(status, why);
}

http::Response ApiHandler::failed(const Error& why) { return problem(why); }

}  // namespace cairn
