#include "server/routing/router.hpp"

#include <algorithm>

#include "base/assert.hpp"
#include "server/codec/query.hpp"

namespace cairn {

std::optional<Router::Split> Router::split(std::string_view path) {
  Split split;
  if (path.empty() || path.front() != '/') return std::nullopt;
  path.remove_prefix(1);
  if (path.empty()) return split;  // "/" has no segments
  while (true) {
    if (split.count == kMaxSegments) return std::nullopt;
    const auto end = path.find('/');
    split.segments[split.count++] = path.substr(0, end);
    if (end == std::string_view::npos) return split;
    path.remove_prefix(end + 1);
  }
}

Router::Router(std::span<const RoutePattern> patterns) {
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    const auto parts = split(patterns[i].path);
    CAIRN_ASSERT(parts.has_value(), "a route could never be reached");
    const auto path = std::ranges::find(paths_, patterns[i].path);
    Route route{.index = i,
                .path = static_cast<std::size_t>(path - paths_.begin()),
                .method = patterns[i].method,
                .num_segments = parts->count};
    for (std::size_t s = 0; s < parts->count; ++s) {
      const std::string_view text = parts->segments[s];
      route.segments[s] = {text, text.starts_with('{')};
    }
    routes_[parts->count].push_back(route);
    if (path == paths_.end()) paths_.push_back(patterns[i].path);
  }
}

bool Router::fits(const Route& route, const Split& split) {
  // Compares from the end, where routes differ.
  for (std::size_t i = route.num_segments; i-- > 0;) {
    const Segment& segment = route.segments[i];
    const std::string_view text = split.segments[i];
    if (segment.is_parameter ? text.empty() : segment.text != text) return false;
  }
  return true;
}

const Router::Route* Router::look_up(http::Method method, const Split& split) const {
  for (const Route& route : routes_[split.count]) {
    if (route.method == method && fits(route, split)) return &route;
  }
  return nullptr;
}

std::optional<Router::Match> Router::find(http::Method method, std::string_view path) const {
  const auto parts = split(path);
  if (!parts) return std::nullopt;
  const Route* route = look_up(method, *parts);
  if (route == nullptr && method == http::Method::head) {
    route = look_up(http::Method::get, *parts);
  }
  if (route == nullptr) return std::nullopt;

  Match match{.route = route->index, .path = route->path};
  PathParameters& parameters = match.parameters;
  std::size_t count = 0;
  for (std::size_t i = 0; i < route->num_segments; ++i) {
    if (!route->segments[i].is_parameter) continue;
    std::string_view text = parts->segments[i];
    if (text.find('%') != std::string_view::npos) {
      const auto decoded = percent_decoded(text);
      if (!decoded) return std::nullopt;
      // Decoding never lengthens, so this reserve is enough and the views stay valid.
      parameters.decoded_.reserve(path.size());
      const std::size_t at = parameters.decoded_.size();
      parameters.decoded_.insert(parameters.decoded_.end(), decoded->begin(), decoded->end());
      text = std::string_view(parameters.decoded_.data() + at, decoded->size());
    }
    parameters.values_[count++] = text;
  }
  return match;
}

Router::Miss Router::explain(std::string_view path) const {
  Miss miss;
  const auto parts = split(path);
  if (!parts) return miss;
  miss.malformed = !percent_decoded(path).has_value();
  bool has_get = false;
  bool has_head = false;
  for (const Route& route : routes_[parts->count]) {
    if (!fits(route, *parts)) continue;
    miss.known_path = true;
    has_get = has_get || route.method == http::Method::get;
    has_head = has_head || route.method == http::Method::head;
    miss.allow.append(miss.allow.empty() ? "" : ", ").append(to_string(route.method));
  }
  if (has_get && !has_head) miss.allow.append(", HEAD");
  return miss;
}

}  // namespace cairn
