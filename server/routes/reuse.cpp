// What a cache would find if it were larger, smaller or kept other blocks.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>

#include "server/routes/common.hpp"
#include "server/routes/handlers.hpp"

namespace cairn::routes {
namespace {

// Points of a curve for a picture; each takes some microseconds.
constexpr std::size_t kMostCapacities = 64;
constexpr std::uint64_t kMostBlocks = std::uint64_t{1} << 40U;

// "1000,3000"
Result<std::vector<std::uint64_t>> capacities_of(std::string_view text) {
  const Error wrong{ErrorCode::out_of_range,
                    "capacities is '" + std::string(text.substr(0, 64)) + "'; it takes 1 to " +
                        std::to_string(kMostCapacities) + " numbers of blocks from 1 to " +
                        std::to_string(kMostBlocks) + ", with commas"};
  std::vector<std::uint64_t> capacities;
  while (true) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view number = text.substr(0, comma);
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (error != std::errc() || end != number.data() + number.size() || value < 1 ||
        value > kMostBlocks || capacities.size() == kMostCapacities) {
      return wrong;
    }
    capacities.push_back(value);
    if (comma == text.size()) return capacities;
    text.remove_prefix(comma + 1);
  }
}

// More digits would say nothing.
double rounded(double value) { return std::round(value * 1e6) / 1e6; }

ordered_json miss_ratio_body(const MissRatio& ratio, double optimum) {
  ordered_json points = ordered_json::array();
  for (const MissRatio::Point& point : ratio.points) {
    points.push_back({{"capacity_blocks", point.capacity_blocks},
                      {"lru", rounded(point.lru)},
                      {"policy", rounded(point.policy)}});
  }
  ordered_json advice = ordered_json::array();
  for (const MissRatio::Advice& one : ratio.advice) {
    advice.push_back({{"tier", to_string(one.tier)},
                      {"added_bytes", std::uint64_t{1} << 30U},
                      {"added_blocks", one.added_blocks},
                      {"hit_rate", rounded(one.hit_rate)},
                      {"hits_per_s", rounded(one.hits_per_s)},
                      {"tokens_per_s", rounded(one.tokens_per_s)}});
  }
  return {{"requests", ratio.requests},
          {"capacity_blocks", ratio.capacity_blocks},
          {"blocks_per_s", rounded(ratio.blocks_per_s)},
          {"points", std::move(points)},
          {"optimum", rounded(optimum)},
          {"advice", std::move(advice)}};
}

}  // namespace

void miss_ratio(Service& service, const Call& call, Reply reply) {
  auto cache = cache_of(service, call);
  if (!cache) return reply.error(cache.error());
  Query query(call.head.query);
  MissRatioRequest request;
  if (const auto text = query.text("capacities")) {
    auto capacities = capacities_of(*text);
    if (capacities) {
      request.capacities_blocks = std::move(*capacities);
    } else {
      query.refuse(capacities.error().code, capacities.error().detail);
    }
  }
  if (auto read = query.finish(); !read) return reply.error(read.error());
  answer_on(service.readers, std::move(reply),
            [cache = std::move(*cache), request = std::move(request)](Reply& answer) {
              answer.document(200, miss_ratio_body(cache->miss_ratio(request), cache->optimum()));
            });
}

}  // namespace cairn::routes
