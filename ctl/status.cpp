// The server and its caches.
#include <array>
#include <charconv>
#include <ostream>

#include "base/printable.hpp"
#include "ctl/command.hpp"
#include "ctl/text_table.hpp"

namespace cairn::ctl {
namespace {

std::string used_of(const json& cache, const char* tier) {
  const json tiers = cache.at("tiers");
  if (!tiers.contains(tier)) return "-";
  const json& blocks = tiers.at(tier).at("blocks");
  const auto capacity = tiers.at(tier).at("capacity_blocks").get<std::uint64_t>();
  return std::to_string(capacity - blocks.at("free").get<std::uint64_t>()) + "/" +
         std::to_string(capacity);
}

std::string number(const json& value) { return std::to_string(value.get<std::uint64_t>()); }

void print_caches(const json& caches, std::ostream& out) {
  TextTable table({"CACHE", "BLOCK", "DEVICE", "PINNED", "DISK", "LEASES", "HITS", "MISSES"});
  for (const json& cache : caches) {
    std::vector<std::string> row = {cache.at("name"), bytes_text(cache.at("block_bytes"))};
    for (const char* tier : kTierNames) row.push_back(used_of(cache, tier));
    for (const char* field : {"leases", "hits", "misses"}) row.push_back(number(cache.at(field)));
    table.add(std::move(row));
  }
  table.print(out);
}

void print_cache(const json& cache, std::ostream& out) {
  out << cache.at("name").get<std::string>() << ": blocks of "
      << bytes_text(cache.at("block_bytes")) << ", offload "
      << cache.at("offload").get<std::string>() << ", " << number(cache.at("leases")) << " leases, "
      << number(cache.at("commits")) << " commits, "
      << percent_text(cache.at("hits"),
                      cache.at("hits").get<double>() + cache.at("misses").get<double>())
      << " hits\n";
  TextTable table({"TIER", "BLOCKS", "FREE", "ALLOCATED", "COMMITTED", "EVICTABLE", "HITS",
                   "EVICTIONS", "RESERVED", "PRESSURE"});
  for (const char* tier : kTierNames) {
    if (!cache.at("tiers").contains(tier)) continue;
    const json& one = cache.at("tiers").at(tier);
    std::vector<std::string> row = {tier, number(one.at("capacity_blocks"))};
    for (const char* state : {"free", "allocated", "committed", "evictable"}) {
      row.push_back(number(one.at("blocks").at(state)));
    }
    row.push_back(number(one.at("hits")));
    row.push_back(number(one.at("evictions")));
    row.push_back(bytes_text(one.at("reserved_bytes")));
    row.push_back(one.at("pressure"));
    table.add(std::move(row));
  }
  table.print(out);
}

// The first ones: as many as a screen has room for.
constexpr std::size_t kMostWarnings = 20;

void print_warnings(const json& warnings, std::ostream& out) {
  for (std::size_t i = 0; i < warnings.size() && i < kMostWarnings; ++i) {
    const json& one = warnings.at(i);
    const auto text = [&one](const char* name) {
      return printable(one.at(name).get<std::string>());
    };
    const std::string subject = text("subject");
    out << "warning: " << text("kind") << (subject.empty() ? "" : " ") << subject << ": "
        << text("detail") << "\n";
  }
  if (warnings.size() > kMostWarnings) {
    out << "warning: and " << warnings.size() - kMostWarnings << " more\n";
  }
}

}  // namespace

Answer<> health(const Session& session) {
  auto answer = session.client.call("GET", "/healthz");
  if (!answer) return std::move(answer).error();
  if (session.print_json(*answer)) return {};
  return printed([&] { session.out << answer->at("status").get<std::string>() << "\n"; });
}

Answer<> status(const Session& session) {
  auto system = session.client.call("GET", "/v1/system");
  if (!system) return std::move(system).error();
  if (session.print_json(*system)) return {};
  auto caches = session.client.call("GET", "/v1/caches");
  if (!caches) return std::move(caches).error();
  return printed([&] {
    const json& s = *system;
    session.out << "cairn-server " << s.at("version").get<std::string>() << ", "
                << s.at("state").get<std::string>() << ", up " << duration_text(s.at("uptime_ms"))
                << ", runtime " << s.at("runtime").get<std::string>() << " with "
                << s.at("devices").size() << " devices\n"
                << number(s.at("http").at("connections")) << " connections, transfers "
                << number(s.at("transfers").at("running")) << " running and "
                << number(s.at("transfers").at("queued")) << " queued, "
                << bytes_text(s.at("engine").at("bytes_moved")) << " moved\n";
    print_warnings(s.value("warnings", json::array()), session.out);
    session.out << "\n";
    print_caches(caches->at("caches"), session.out);
  });
}

Answer<> list_caches(const Session& session) {
  auto caches = session.client.call("GET", "/v1/caches");
  if (!caches) return std::move(caches).error();
  if (session.print_json(*caches)) return {};
  return printed([&] { print_caches(caches->at("caches"), session.out); });
}

Answer<> show_cache(const Session& session) {
  auto cache = session.client.call("GET", session.cache_path());
  if (!cache) return std::move(cache).error();
  if (session.print_json(*cache)) return {};
  return printed([&] { print_cache(*cache, session.out); });
}

Answer<> create_cache(const Session& session) {
  auto text = read_all(session.word(1));
  if (!text) return std::move(text).error();
  const json body = json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (body.is_discarded()) return local_failure("'" + session.word(1) + "' holds no JSON");
  auto made = session.client.put_cache(session.word(0), body);
  if (!made) return std::move(made).error();
  if (session.print_json(made->description)) return {};
  session.out << session.word(0) << (made->created ? " was made\n" : " was there already\n");
  return {};
}

namespace {

Answer<> change(const Session& session, const json& body) {
  auto changed = session.client.call("PATCH", session.cache_path(), body);
  if (!changed) return std::move(changed).error();
  if (session.print_json(*changed)) return {};
  return printed([&] { print_cache(*changed, session.out); });
}

}  // namespace

Answer<> change_cache(const Session& session) {
  auto text = read_all(session.word(1));
  if (!text) return std::move(text).error();
  const json body = json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (body.is_discarded()) return local_failure("'" + session.word(1) + "' holds no JSON");
  return change(session, body);
}

Answer<> resize_cache(const Session& session) {
  const std::string& blocks = session.word(2);
  std::uint32_t num_blocks = 0;
  const auto [end, error] =
      std::from_chars(blocks.data(), blocks.data() + blocks.size(), num_blocks);
  if (error != std::errc() || end != blocks.data() + blocks.size()) {
    return local_failure("'" + blocks + "' is no number of blocks");
  }
  return change(session, {{"tiers", {{session.word(1), {{"num_blocks", num_blocks}}}}}});
}

Answer<> clear_cache(const Session& session) {
  json body = json::object();
  if (session.arguments.has("tier")) body["tier"] = session.arguments.text("tier");
  auto cleared = session.client.call("POST", session.cache_path("/clear"), body);
  if (!cleared) return std::move(cleared).error();
  if (session.print_json(*cleared)) return {};
  return printed([&] {
    session.out << cleared->at("evicted") << " copies were dropped; " << cleared->at("leased")
                << " stay because a lease holds them\n";
  });
}

Answer<> delete_cache(const Session& session) {
  CAIRN_TRY(session.client.delete_cache(session.word(0), session.arguments.has("force")));
  if (!session.arguments.json) session.out << session.word(0) << " was deleted\n";
  return {};
}

}  // namespace cairn::ctl
