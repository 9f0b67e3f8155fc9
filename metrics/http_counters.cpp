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
    : routes_(routes), methods_(methods), rows_(std::make_unique<Row[]>(routes.size())) {
  CAIRN_ASSERT(methods.size() <= kMaxMethods, "a method would have no place");
}

void HttpCounters::record(const Request& request) {
  CAIRN_ASSERT(request.route < routes_.size() && request.method < methods_.size(),
               "a request would be counted in memory of something else");
  Row& row = rows_[request.route];
  row.counts[request.method][index_of_status(request.status)].fetch_add(1,
                                                                        std::memory_order_relaxed);
  row.durations.record(request.duration_us);
}

std::vector<HttpCounters::Count> HttpCounters::counts() const {
  std::vector<Count> result;
  for (std::size_t route = 0; route < routes_.size(); ++route) {
    for (std::size_t method = 0; method < methods_.size(); ++method) {
      for (std::size_t status = 0; status < kStatuses.size(); ++status) {
        const std::uint64_t requests =
            rows_[route].counts[method][status].load(std::memory_order_relaxed);
        if (requests == 0) continue;
        result.push_back({routes_[route], methods_[method], kStatuses[status], requests});
      }
    }
  }
  return result;
}

}  // namespace cairn
