#include "metrics/http_counters.hpp"

#include "base/assert.hpp"

namespace cairn {
namespace {

std::size_t index_of_status(unsigned status) {
  std::size_t index = 0;
  while (index + 1 < HttpCounters::kStatuses.size() && HttpCounters::kStatuses[index] != status) {
    ++index;
  }
  return index;
}

}  // namespace

HttpCounters::HttpCounters(std::span<const std::string_view> routes,
                           std::span<const std::string_view> methods)
    : routes_(routes),
      methods_(methods),
      counts_(std::make_unique<std::atomic<std::uint64_t>[]>(routes.size() * methods.size() *
                                                             kStatuses.size())),
      durations_(std::make_unique<DurationHistogram[]>(routes.size())) {}

void HttpCounters::record(const Request& request) {
  CAIRN_ASSERT(request.route < routes_.size() && request.method < methods_.size(),
               "a request would be counted in memory of something else");
  const std::size_t row = request.route * methods_.size() + request.method;
  counts_[row * kStatuses.size() + index_of_status(request.status)].fetch_add(
      1, std::memory_order_relaxed);
  durations_[request.route].record(request.duration_us);
}

std::vector<HttpCounters::Count> HttpCounters::counts() const {
  std::vector<Count> result;
  std::size_t at = 0;
  for (std::string_view route : routes_) {
    for (std::string_view method : methods_) {
      for (unsigned status : kStatuses) {
        const std::uint64_t requests = counts_[at++].load(std::memory_order_relaxed);
        if (requests > 0) result.push_back({route, method, status, requests});
      }
    }
  }
  return result;
}

}  // namespace cairn
