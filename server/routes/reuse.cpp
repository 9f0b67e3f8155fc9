// Estimates what a cache would find if it were larger, smaller or kept other blocks.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string>

#include "server/routes/common.hpp"
#include "server/routes/handlers.hpp"

namespace cairn::routes {
namespace {

// Points of a curve to draw; each takes some microseconds.
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

// More digits would be noise.
double rounded(double value) { return std::round(value * 1e6) / 1e6; }

// With fewer requests the numbers mean little.
constexpr std::uint64_t kEnoughRequests = 1'000;
// Smaller differences are chance, or errors of the models.
constexpr double kWorthwhile = 0.01;

// 1.2, and 1234.
std::string number_text(double value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value,
                                 std::chars_format::fixed, value < 10 ? 1 : 0)
                       .ptr;
  std::string_view digits(text.data(), end);
  if (digits.ends_with(".0")) digits.remove_suffix(2);
  return std::string(digits);
}
std::string percent(double share) { return number_text(100 * share) + "%"; }

// Advice for people, in the words that `cairnctl advise` and the status page show. No sentence may
// contradict another: it advises more room or less, and what it says about now is in force now.
std::vector<std::string> words_of(const MissRatio& ratio, EvictionKind eviction) {
  if (ratio.requests < kEnoughRequests) return {"Too few lookups yet to advise anything."};
  const std::string set(to_string(eviction));
  const auto found = [&](const MissRatio::Point& point) {
    return ratio.follows_lru ? point.lru : point.policy;
  };
  const double now = found(ratio.now);
  const double best = std::max(ratio.optimum, now);
  std::vector<std::string> words;
  if (found(ratio.doubled) - now >= kWorthwhile) {
    words.push_back("Twice the capacity would find " + percent(found(ratio.doubled)) +
                    " instead of " + percent(now) + ".");
  } else {
    words.push_back("Twice the capacity would find hardly more than now, " + percent(now) + ".");
    if (now >= kWorthwhile && now - found(ratio.halved) < kWorthwhile) {
      words.push_back("Half of it would find nearly as much.");
    }
  }
  for (const MissRatio::Advice& one : ratio.advice) {
    if (one.hit_rate < kWorthwhile) continue;
    const bool is_lowest = one.tier == ratio.advice.back().tier;
    // For a small cache a GiB is many times its capacity.
    const std::uint64_t times = 1 + one.added_blocks / ratio.capacity_blocks;
    words.push_back("A GiB more of tier " + std::string(to_string(one.tier)) + " (" +
                    std::to_string(one.added_blocks) + " blocks" +
                    (times > 2 ? ", " + std::to_string(times) + " times the capacity" : "") +
                    ") would save " + number_text(one.hits_per_s) + " blocks a second from " +
                    (is_lowest ? "" : "coming from below or ") + "being computed, " +
                    number_text(one.tokens_per_s) + " tokens a second.");
  }
  if (ratio.follows_lru) {
    words.push_back("It follows lru for now: " + set + " has done worse lately.");
  }
  if (best - now < kWorthwhile) {
    words.push_back("No order of eviction would find noticeably more at this capacity.");
    return words;
  }
  std::string order = "The best possible order of eviction would find " + percent(best) + "; " +
                      (ratio.follows_lru ? "lru" : set) + " finds " + percent(now) + ".";
  if (eviction == EvictionKind::lru) {
    order += " Try \"eviction\": \"class_hazard\", and send output_tokens with each release.";
  } else {
    order += " To get closer, send hints about what comes next.";
  }
  words.push_back(std::move(order));
  return words;
}

ordered_json miss_ratio_body(const MissRatio& ratio, EvictionKind eviction) {
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
          {"optimum", rounded(ratio.optimum)},
          {"advice", std::move(advice)},
          {"words", words_of(ratio, eviction)}};
}

}  // namespace

void miss_ratio(Service& service, const Call& call, std::shared_ptr<Cache> cache, Reply reply) {
  Query query(call.head.query);
  MissRatioRequest request{.with_optimum = true};
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
            [cache = std::move(cache), request = std::move(request)](Reply& answer) {
              answer.document(
                  200, miss_ratio_body(cache->miss_ratio(request), cache->config().eviction));
            });
}

}  // namespace cairn::routes
