// Rates, from two readings of the same counters.
#include <unistd.h>

#include <array>
#include <chrono>
#include <ostream>
#include <thread>

#include "ctl/command.hpp"
#include "ctl/text_table.hpp"

namespace cairn::ctl {
namespace {

constexpr const char* kClearScreen = "\033[H\033[J";

// The sum of a metric's samples that have all of these labels.
double sum(const client::Metrics& metrics, const std::string& name,
           const std::vector<std::string>& labels) {
  double total = 0;
  for (auto at = metrics.samples().lower_bound(name);
       at != metrics.samples().end() && at->first.starts_with(name); ++at) {
    bool fits = at->first.size() > name.size() && at->first[name.size()] == '{';
    for (const std::string& label : labels) {
      fits = fits && at->first.find(label) != std::string::npos;
    }
    if (fits) total += at->second;
  }
  return total;
}

struct Look {
  std::chrono::steady_clock::time_point at;
  client::Metrics metrics;
  json caches;
};

Answer<Look> look(const Session& session) {
  Look now;
  auto caches = session.client.call("GET", "/v1/caches");
  if (!caches) return std::move(caches).error();
  auto list = client::field_from<json>(*caches, "caches");
  if (!list) return std::move(list).error();
  now.caches = std::move(*list);
  auto metrics = session.client.metrics();
  if (!metrics) return std::move(metrics).error();
  now.metrics = std::move(*metrics);
  now.at = std::chrono::steady_clock::now();
  return now;
}

class Rates {
 public:
  Rates(const Look& before, const Look& now) : before_(before), now_(now) {}
  double seconds() const { return std::chrono::duration<double>(now_.at - before_.at).count(); }
  double grown(const std::string& name, const std::vector<std::string>& labels) const {
    // A restarted server counts from 0.
    return std::max(0.0, sum(now_.metrics, name, labels) - sum(before_.metrics, name, labels));
  }
  double rate(const std::string& name, const std::vector<std::string>& labels) const {
    return grown(name, labels) / std::max(seconds(), 1e-3);
  }

 private:
  const Look& before_;
  const Look& now_;
};

json rates_of(const json& cache, const Rates& rates) {
  const std::string label = "cache=\"" + cache.at("name").get<std::string>() + "\"";
  const std::string matches = "cairn_match_blocks_total";
  const double asked = rates.grown(matches, {label});
  const double missed = rates.grown(matches, {label, "result=\"miss\""});
  json used = json::object();
  for (const char* tier : kTierNames) {
    if (!cache.at("tiers").contains(tier)) continue;
    const json& one = cache.at("tiers").at(tier);
    used[tier] = {{"used", one.at("capacity_blocks").get<std::uint64_t>() -
                               one.at("blocks").at("free").get<std::uint64_t>()},
                  {"capacity", one.at("capacity_blocks")}};
  }
  return {{"cache", cache.at("name")},
          {"tiers", std::move(used)},
          {"leases", cache.at("leases")},
          {"matched_blocks_per_s", rates.rate(matches, {label})},
          {"hit_share", asked > 0 ? json((asked - missed) / asked) : json()},
          {"evictions_per_s", rates.rate("cairn_evictions_total", {label})},
          {"moved_bytes_per_s", rates.rate("cairn_transfer_bytes_total", {label})}};
}

void print(const json& picture, std::ostream& out) {
  out << rate_text(picture.at("requests_per_s")) << " requests/s, " << picture.at("caches").size()
      << " caches\n";
  TextTable table(
      {"CACHE", "DEVICE", "PINNED", "DISK", "LEASES", "BLOCKS/S", "HIT", "EVICTED/S", "MOVED/S"});
  for (const json& cache : picture.at("caches")) {
    std::vector<std::string> row = {cache.at("cache")};
    for (const char* tier : kTierNames) {
      if (!cache.at("tiers").contains(tier)) {
        row.emplace_back("-");
        continue;
      }
      const json& one = cache.at("tiers").at(tier);
      row.push_back(percent_text(one.at("used"), one.at("capacity")));
    }
    row.push_back(cache.at("leases").dump());
    row.push_back(rate_text(cache.at("matched_blocks_per_s")));
    row.push_back(cache.at("hit_share").is_null() ? "-" : percent_text(cache.at("hit_share"), 1));
    row.push_back(rate_text(cache.at("evictions_per_s")));
    row.push_back(bytes_text(cache.at("moved_bytes_per_s")));
    table.add(std::move(row));
  }
  table.print(out);
}

}  // namespace

Answer<> top(const Session& session) {
  const std::chrono::milliseconds interval(session.arguments.number("interval-ms", 1000));
  const std::uint64_t count = session.arguments.number("count", 0);
  const bool on_terminal = !session.arguments.json && ::isatty(STDOUT_FILENO) == 1;
  auto before = look(session);
  if (!before) return std::move(before).error();
  for (std::uint64_t n = 1; count == 0 || n <= count; ++n) {
    std::this_thread::sleep_for(interval);
    auto now = look(session);
    if (!now) return std::move(now).error();
    auto shown = printed([&] {
      const Rates rates(*before, *now);
      json caches = json::array();
      for (const json& cache : now->caches) caches.push_back(rates_of(cache, rates));
      const json picture = {{"requests_per_s", rates.rate("cairn_http_requests_total", {})},
                            {"caches", std::move(caches)}};
      if (session.arguments.json) {
        session.out << picture.dump() << "\n";  // one line per update
      } else {
        if (on_terminal) session.out << kClearScreen;
        print(picture, session.out);
      }
      session.out << std::flush;
    });
    if (!shown) return shown;
    before = std::move(now);
  }
  return {};
}

}  // namespace cairn::ctl
