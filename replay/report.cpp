#include "replay/report.hpp"

#include <array>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <ostream>
#include <utility>

namespace cairn::replay {
namespace {

using client::kTiers;
using client::Tier;

// As the API names them.
constexpr std::array kActionOutcomes = {"accepted", "clipped", "deferred", "rejected", "missing"};

std::size_t index_of(Tier tier) { return static_cast<std::size_t>(tier); }

double duration_s(const Outcome& outcome) {
  return std::chrono::duration<double>(outcome.duration).count();
}

double per_second(double amount, const Outcome& outcome) {
  const double seconds = duration_s(outcome);
  return seconds > 0 ? amount / seconds : 0;
}

double gigabytes_per_s(std::uint64_t bytes, const Outcome& outcome) {
  return per_second(static_cast<double>(bytes) / 1e9, outcome);
}

double share(std::uint64_t part, std::uint64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

MatchCounts counted(const Tally& tally) { return {tally.hits, tally.misses}; }

bool server_agrees(const Outcome& outcome) {
  if (outcome.server != counted(outcome.tally)) return false;
  // With several KV groups, a key may be hit in each.
  return outcome.target.kv_model || outcome.server->total() == outcome.tally.blocks_asked;
}

std::string describe(const MatchCounts& counts) {
  std::string text;
  for (const Tier tier : kTiers) {
    text.append(client::to_string(tier)).append(" ");
    text.append(std::to_string(counts.hits[index_of(tier)])).append(", ");
  }
  return text.append("miss ").append(std::to_string(counts.misses));
}

void print_count(std::ostream& out, std::string_view name, std::uint64_t count,
                 std::uint64_t whole) {
  out << "  " << std::left << std::setw(14) << name << std::right << std::setw(12) << count
      << std::setw(9) << std::setprecision(1) << 100 * share(count, whole) << "%\n";
}

void print_latencies(std::ostream& out, Tally& tally) {
  out << "\nlatency, us       calls       p50       p90       p99       max\n"
      << std::setprecision(0);
  for (const Step step : kSteps) {
    const Percentiles latency = tally.latency(step);
    out << "  " << std::left << std::setw(10) << to_string(step) << std::right << std::setw(11)
        << latency.count;
    for (const double value : {latency.p50_us, latency.p90_us, latency.p99_us, latency.max_us}) {
      out << std::setw(10) << value;
    }
    out << "\n";
  }
}

void print_engine(std::ostream& out, const Tally& tally) {
  using enum Tally::EnginePart;
  struct Row {
    const char* name;
    Tally::EnginePart part;
  };
  constexpr std::array<Row, 3> kRows = {
      {{"real: calls of the server", real}, {"virtual: the engine", simulated}, {"both", both}}};
  out << "\nto the last byte in the engine, us         p50       p90       p99       max\n";
  for (const auto& [name, part] : kRows) {
    const Percentiles times = tally.engine_time(part);
    out << "  " << std::left << std::setw(34) << name << std::right;
    for (const double value : {times.p50_us, times.p90_us, times.p99_us, times.max_us}) {
      out << std::setw(10) << value;
    }
    out << "\n";
  }
}

void print_actions(std::ostream& out, const Outcome& outcome) {
  out << "\nactions   ";
  for (const char* word : kActionOutcomes) out << std::setw(10) << word;
  out << "\n";
  for (const auto& [type, outcomes] : outcome.tally.actions) {
    out << "  " << std::left << std::setw(8) << type << std::right;
    for (const char* word : kActionOutcomes) {
      const auto found = outcomes.find(word);
      out << std::setw(10) << (found == outcomes.end() ? 0 : found->second);
    }
    out << "\n";
  }
  if (!outcome.prefetched) return;
  out << "prefetched blocks: ";
  const char* separator = "";
  for (const auto& [result, count] : *outcome.prefetched) {
    out << std::exchange(separator, ", ") << result << " " << count;
  }
  out << "\n";
}

}  // namespace

std::vector<std::string> faults_of(const Outcome& outcome) {
  const Tally& tally = outcome.tally;
  std::vector<std::string> faults;
  if (tally.wrong_bytes > 0) {
    faults.push_back(std::to_string(tally.wrong_bytes) + " bytes in " +
                     std::to_string(tally.wrong_blocks) + " blocks were wrong");
  }
  if (tally.leased_missing > 0) {
    faults.push_back(std::to_string(tally.leased_missing) + " blocks were gone under a lease");
  }
  if (tally.errors_total() > 0) {
    faults.push_back(std::to_string(tally.errors_total()) + " calls failed");
  }
  if (!outcome.broken_off.empty()) faults.push_back("broken off: " + outcome.broken_off);
  if (outcome.target.own && outcome.server && !server_agrees(outcome)) {
    faults.push_back("the server counted other matches: " + describe(*outcome.server) +
                     "; the replay: " + describe(counted(tally)));
  }
  return faults;
}

void print_report(std::ostream& out, Outcome& outcome) {
  Tally& tally = outcome.tally;
  out << std::fixed << std::setprecision(1);
  out << "cache " << outcome.target.name << ", blocks of " << outcome.target.block_bytes
      << " bytes";
  if (outcome.target.kv_model) out << " and less, KV groups of " << outcome.target.kv_model->name;
  out << "\n\nrequests        " << std::setw(12) << tally.requests << "   in "
      << duration_s(outcome) << " s, " << per_second(static_cast<double>(tally.requests), outcome)
      << "/s\n";
  out << "blocks asked    " << std::setw(12) << tally.blocks_asked << "\n";
  if (outcome.target.kv_model) {
    print_count(out, "matched", tally.matched, tally.blocks_asked);
    print_count(out, "by full alone", tally.full_matched, tally.blocks_asked);
    print_count(out, "miss", tally.misses, tally.blocks_asked);
    out << "blocks of all groups\n";
  }
  // With several KV groups, shares of the blocks that were needed or stored.
  const std::uint64_t found_of = outcome.target.kv_model ? tally.hits_total() : tally.blocks_asked;
  for (const Tier tier : kTiers) {
    print_count(out, std::string("hit ").append(client::to_string(tier)),
                tally.hits[index_of(tier)], found_of);
  }
  std::uint64_t stored_of = tally.misses;
  if (outcome.target.kv_model) {
    stored_of = tally.stored + tally.duplicates + tally.not_stored;
  } else {
    print_count(out, "hit, all", tally.hits_total(), tally.blocks_asked);
    print_count(out, "miss", tally.misses, tally.blocks_asked);
    out << "of the misses\n";
  }
  print_count(out, "stored", tally.stored, stored_of);
  print_count(out, "duplicate", tally.duplicates, stored_of);
  print_count(out, "not stored", tally.not_stored, stored_of);
  out << std::setprecision(3) << "read            " << std::setw(12)
      << gigabytes_per_s(tally.bytes_read, outcome) << " GB/s, " << tally.blocks_read
      << " blocks compared\nwritten         " << std::setw(12)
      << gigabytes_per_s(tally.bytes_written, outcome) << " GB/s\n";
  print_latencies(out, tally);
  if (!tally.engine_times.empty()) print_engine(out, tally);
  if (!tally.actions.empty()) print_actions(out, outcome);
  out << "\nwrong bytes     " << std::setw(12) << tally.wrong_bytes << "\nretries         "
      << std::setw(12) << tally.retries << "\n";
  if (tally.late_ms > 0)
    out << "late            " << std::setw(12) << tally.late_ms << " ms at most\n";
  for (const auto& [what, count] : tally.errors) {
    out << "error           " << std::setw(12) << count << "   " << what << "\n";
  }
  if (outcome.server) {
    out << "server counted  " << describe(*outcome.server)
        << (server_agrees(outcome) ? ": the same\n" : "\n");
  }
  if (!outcome.target.own && !server_agrees(outcome)) {
    out << "warning: the cache is not the replay's own, and its counts differ from the replay's\n";
  }
  for (const std::string& fault : faults_of(outcome)) out << "FAILED: " << fault << "\n";
}

void print_json(std::ostream& out, Outcome& outcome, const std::vector<std::string>& messages) {
  using nlohmann::ordered_json;
  Tally& tally = outcome.tally;
  const auto counts_json = [](const MatchCounts& counts) {
    ordered_json json;
    for (const Tier tier : kTiers) json[client::to_string(tier)] = counts.hits[index_of(tier)];
    json["miss"] = counts.misses;
    return json;
  };
  const auto percentiles_json = [](const Percentiles& times) {
    return ordered_json{{"count", times.count},
                        {"p50", times.p50_us},
                        {"p90", times.p90_us},
                        {"p99", times.p99_us},
                        {"max", times.max_us}};
  };
  ordered_json latencies;
  for (const Step step : kSteps) latencies[to_string(step)] = percentiles_json(tally.latency(step));
  const std::vector<std::string> faults = faults_of(outcome);
  ordered_json result = {
      {"passed", faults.empty()},
      {"faults", faults},
      {"cache", outcome.target.name},
      {"own_cache", outcome.target.own},
      {"block_bytes", outcome.target.block_bytes},
      {"requests", tally.requests},
      {"requests_failed", tally.requests_failed},
      {"duration_ms", duration_s(outcome) * 1e3},
      {"requests_per_s", per_second(static_cast<double>(tally.requests), outcome)},
      {"blocks_asked", tally.blocks_asked},
      {"match", counts_json(counted(tally))},
      {"hit_rate", share(tally.matched, tally.blocks_asked)},
      {"stored", tally.stored},
      {"duplicates", tally.duplicates},
      {"not_stored", tally.not_stored},
      {"blocks_read", tally.blocks_read},
      {"bytes_read", tally.bytes_read},
      {"bytes_written", tally.bytes_written},
      {"read_gb_per_s", gigabytes_per_s(tally.bytes_read, outcome)},
      {"written_gb_per_s", gigabytes_per_s(tally.bytes_written, outcome)},
      {"wrong_bytes", tally.wrong_bytes},
      {"wrong_blocks", tally.wrong_blocks},
      {"leased_missing", tally.leased_missing},
      {"retries", tally.retries},
      {"late_ms", tally.late_ms},
      {"errors", tally.errors.empty() ? ordered_json::object() : ordered_json(tally.errors)},
      {"latency_us", latencies},
      {"server_match", outcome.server ? counts_json(*outcome.server) : ordered_json()},
      {"server_agrees", server_agrees(outcome)},
      {"messages", messages}};
  if (outcome.target.kv_model) {
    result["kv_groups"] = {{"model", outcome.target.kv_model->name},
                           {"matched", tally.matched},
                           {"full_matched", tally.full_matched}};
  }
  if (!tally.engine_times.empty()) {
    using enum Tally::EnginePart;
    result["engine_us"] = {{"real", percentiles_json(tally.engine_time(real))},
                           {"virtual", percentiles_json(tally.engine_time(simulated))},
                           {"both", percentiles_json(tally.engine_time(both))}};
  }
  if (!tally.actions.empty()) result["actions"] = tally.actions;
  if (outcome.prefetched) result["prefetched_blocks"] = *outcome.prefetched;
  out << result.dump(2) << "\n";
}

}  // namespace cairn::replay
