// What more memory would give a cache, in words.
#include <algorithm>
#include <cmath>

#include "ctl/command.hpp"
#include "ctl/text_table.hpp"

namespace cairn::ctl {
namespace {

// Fewer say little.
constexpr std::uint64_t kEnoughRequests = 1'000;
// Differences below are chance, or the models' error.
constexpr double kWorthwhile = 0.01;

std::string percent(double share) { return percent_text(share, 1); }

// The point of today's capacity.
const json& point_of(const json& ratio, double times) {
  const double wanted = times * ratio.at("capacity_blocks").get<double>();
  const json& points = ratio.at("points");
  return *std::ranges::min_element(points, {}, [wanted](const json& point) {
    return std::abs(point.at("capacity_blocks").get<double>() - wanted);
  });
}

void print_words(const json& ratio, const json& cache, std::ostream& out) {
  const std::string eviction = cache.at("eviction");
  const std::string in_force = cache.at("eviction_in_force");
  const double now = point_of(ratio, 1).at("policy");
  const double doubled = point_of(ratio, 2).at("policy");
  const double halved = point_of(ratio, 0.5).at("policy");
  const double optimum = ratio.at("optimum");
  out << "\n";
  if (doubled - now >= kWorthwhile) {
    out << "Twice the capacity would find " << percent(doubled) << " instead of " << percent(now)
        << ".\n";
  } else {
    out << "Twice the capacity would find hardly more than now.\n";
  }
  if (now >= kWorthwhile && now - halved < kWorthwhile)
    out << "Half of it would find nearly as much.\n";
  for (const json& one : ratio.at("advice")) {
    out << "A GiB more of tier " << one.at("tier").get<std::string>() << " ("
        << one.at("added_blocks").dump() << " blocks) would save "
        << rate_text(one.at("hits_per_s")) << " blocks a second from "
        << "coming from below or being computed, " << rate_text(one.at("tokens_per_s"))
        << " tokens a second.\n";
  }
  const double lru = point_of(ratio, 1).at("lru");
  if (in_force != eviction) {
    out << "It follows " << in_force << " for now, which finds " << percent(lru) << ": " << eviction
        << " has done worse lately.\n";
  }
  out << "The best possible order of eviction would find " << percent(optimum) << "; with "
      << eviction << " it is " << percent(now) << ".";
  if (optimum - now >= kWorthwhile) {
    out << (eviction == "lru" ? " Try \"eviction\": \"class_hazard\", and tell output_tokens with "
                                "each release."
                              : " Only the frontend knows the rest.");
  }
  out << "\n";
}

}  // namespace

Answer<> advise(const Session& session) {
  auto ratio = session.client.call("GET", session.cache_path("/miss_ratio"));
  if (!ratio) return std::move(ratio).error();
  if (session.print_json(*ratio)) return {};
  auto cache = session.client.call("GET", session.cache_path());
  if (!cache) return std::move(cache).error();
  return printed([&] {
    const auto requests = ratio->at("requests").get<std::uint64_t>();
    session.out << session.word(0) << " has room for " << ratio->at("capacity_blocks").dump()
                << " different blocks. From " << requests << " lookups, "
                << rate_text(ratio->at("blocks_per_s")) << " blocks a second:\n\n";
    TextTable table({"BLOCKS", "LRU", "AS SET"});
    for (const json& point : ratio->at("points")) {
      table.add({point.at("capacity_blocks").dump(), percent(point.at("lru")),
                 percent(point.at("policy"))});
    }
    table.print(session.out);
    if (requests < kEnoughRequests) {
      session.out << "\nToo few lookups yet to advise anything.\n";
      return;
    }
    print_words(*ratio, *cache, session.out);
  });
}

}  // namespace cairn::ctl
