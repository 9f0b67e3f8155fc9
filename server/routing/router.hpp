#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/message.hpp"

namespace cairn {

// The values of a template's {names} in a path, in order, percent-decoded. Move-only: the views may
// point into it.
class PathParameters {
 public:
  // "/v1/caches/{cache}/slots/{tier}/{slot}/data" has the most.
  static constexpr std::size_t kMax = 3;

  std::string_view operator[](std::size_t index) const { return values_[index]; }

 private:
  friend class Router;
  std::array<std::string_view, kMax> values_;
  std::vector<char> decoded_;
};

struct RoutePattern {
  http::Method method = http::Method::get;
  std::string_view path;  // static storage, e.g. "/v1/caches/{cache}/match"
};

// Finds the route of a request. Allocates only if a parameter is percent-encoded. Immutable, so
// thread-safe.
class Router {
 public:
  // Borrows the patterns. Their order affects only speed: earlier ones are found faster.
  explicit Router(std::span<const RoutePattern> patterns);

  struct Match {
    std::size_t route = 0;  // index of the pattern
    std::size_t path = 0;   // index of its path in paths()
    PathParameters parameters = {};
  };
  struct Miss {
    bool known_path = false;  // other methods have a route
    std::string allow;        // those methods, as an Allow header
    bool malformed = false;   // a broken percent-encoding
  };
  // HEAD uses the GET route if it has none. nullopt if no route matches.
  std::optional<Match> find(http::Method method, std::string_view path) const;
  // Explains why find() returned nullopt.
  Miss explain(std::string_view path) const;

  // Each path once: the closed set of route labels.
  std::span<const std::string_view> paths() const { return paths_; }

 private:
  static constexpr std::size_t kMaxSegments = 8;
  struct Segment {
    std::string_view text;
    bool is_parameter = false;
  };
  struct Route {
    std::size_t index = 0;
    std::size_t path = 0;
    http::Method method = http::Method::get;
    std::size_t num_segments = 0;
    std::array<Segment, kMaxSegments> segments{};
  };
  struct Split {
    std::size_t count = 0;
    std::array<std::string_view, kMaxSegments> segments;
  };

  static std::optional<Split> split(std::string_view path);
  static bool fits(const Route& route, const Split& split);
  const Route* look_up(http::Method method, const Split& split) const;

  // Indexed by the number of segments.
  std::array<std::vector<Route>, kMaxSegments + 1> routes_;
  std::vector<std::string_view> paths_;
};

}  // namespace cairn
