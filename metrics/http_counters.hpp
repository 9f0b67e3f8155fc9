#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/cache_line.hpp"
#include "base/histogram.hpp"

namespace cairn {

// Counts requests of each route, method and status, and their durations: a fixed table of relaxed
// atomics, so that counting takes no lock and a scrape never waits. Thread-safe.
class HttpCounters {
 public:
  // The statuses that are counted separately; any other counts as the last, 0.
  static constexpr std::array<unsigned, 28> kStatuses = {
      200, 201, 202, 204, 206, 304, 400, 401, 403, 404, 405, 408, 409, 410,
      411, 413, 415, 416, 421, 422, 429, 431, 499, 500, 501, 503, 507, 0};

  // Borrows the names, which are the labels: they must outlive this object. REQUIRES: at most
  // kMaxMethods.
  HttpCounters(std::span<const std::string_view> routes, std::span<const std::string_view> methods);

  struct Request {
    std::size_t route = 0;   // index into the names
    std::size_t method = 0;  // likewise
    unsigned status = 200;
    std::uint64_t duration_us = 0;
  };
  void record(const Request& request);

  struct Count {
    std::string_view route;
    std::string_view method;
    unsigned status = 0;  // 0: any other
    std::uint64_t requests = 0;
  };
  // Only counts other than 0.
  std::vector<Count> counts() const;

  std::span<const std::string_view> routes() const { return routes_; }
  DurationHistogram::Snapshot durations(std::size_t route) const {
    return rows_[route].durations.snapshot();
  }

 private:
  static constexpr std::size_t kMaxMethods = 8;
  // The counters of one route lie on other cache lines than those of the next.
  struct alignas(kLinePairBytes) Row {
    DurationHistogram durations;
    std::array<std::array<std::atomic<std::uint64_t>, kStatuses.size()>, kMaxMethods> counts{};
  };
  static_assert(has_pairs_of_its_own<Row>);

  std::span<const std::string_view> routes_;
  std::span<const std::string_view> methods_;
  std::unique_ptr<Row[]> rows_;  // [route]
};

}  // namespace cairn
