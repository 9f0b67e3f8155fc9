// Blocks by their keys, and their leases.
#include <array>
#include <fstream>
#include <iostream>
#include <sstream>

#include "ctl/command.hpp"
#include "ctl/text_table.hpp"

namespace cairn::ctl {
namespace {

std::string key_path(const Session& session) {
  return session.cache_path("/keys/") + client::percent_encoded(session.word(1));
}

Answer<client::HttpResponse> exchange(const Session& session, const client::HttpRequest& request) {
  auto response = session.client.http().request(request);
  if (!response || response->status / 100 == 2) return response;
  return client::problem_from(response->status, response->body);
}

}  // namespace

Answer<> match(const Session& session) {
  const auto& words = session.arguments.words;
  const json body = {{"keys", std::vector<std::string>(words.begin() + 1, words.end())},
                     {"lease_ms", session.arguments.number("lease-ms", 0)},
                     {"have", session.arguments.number("have", 0)}};
  auto found = session.client.call("POST", session.cache_path("/match"), body);
  if (!found) return std::move(found).error();
  if (session.print_json(*found)) return {};
  return printed([&] {
    const json& blocks = found->at("blocks");
    session.out << found->at("matched") << " of " << words.size() - 1 << " keys are there\n";
    if (blocks.empty()) return;
    const bool has_groups = blocks.front().contains("kv_group");
    std::vector<std::string> titles = {"KEY", "TIER", "SLOT", "GENERATION"};
    if (has_groups) titles.push_back("KV GROUP");
    TextTable table(titles);
    for (const json& block : blocks) {
      std::vector<std::string> row = {block.at("key"), block.at("tier"), block.at("slot").dump(),
                                      block.at("generation").dump()};
      if (has_groups) row.push_back(block.at("kv_group"));
      table.add(row);
    }
    table.print(session.out);
    if (found->at("lease").is_string()) {
      session.out << "lease " << found->at("lease").get<std::string>() << "\n";
    }
  });
}

Answer<> put(const Session& session) {
  const std::string& path = session.word(2);
  std::ifstream file;
  if (path != "-") file.open(path, std::ios::binary);
  if (path != "-" && !file) return local_failure("'" + path + "' cannot be read");
  std::ostringstream text;
  text << (path == "-" ? std::cin : file).rdbuf();
  const std::string bytes = std::move(text).str();

  constexpr std::array<std::string_view, 9> kOptions = {"parent",   "tier",     "ttl-ms",
                                                        "priority", "metadata", "if-exists",
                                                        "kv-group", "shard",    "shards"};
  const std::string target = key_path(session) + session.query(kOptions);
  const client::HttpHeader header{"Content-Type", "application/octet-stream"};
  const auto body = std::as_bytes(std::span(bytes));
  auto response = exchange(
      session, {.method = "PUT", .target = target, .headers = {&header, 1}, .body = {&body, 1}});
  if (!response) return std::move(response).error();
  if (session.print_json(json::parse(response->body, nullptr, false))) return {};
  const json stored = json::parse(response->body, nullptr, false);
  const bool is_pending = stored.is_object() && stored.value("status", "") == "pending";
  session.out << session.word(1)
              << (is_pending                ? " was stored; the block lacks other parts\n"
                  : response->status == 201 ? " was stored\n"
                                            : " was there already\n");
  return {};
}

Answer<> get(const Session& session) {
  constexpr std::array<std::string_view, 3> kOptions = {"kv-group", "shard", "shards"};
  auto response = exchange(session, {.target = key_path(session) + session.query(kOptions)});
  if (!response) return std::move(response).error();
  const std::string path = session.arguments.text("output");
  if (path.empty()) {
    session.out << response->body << std::flush;
    if (!session.out) return local_failure("stdout cannot be written");
    return {};
  }
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << response->body << std::flush;
  if (!file) return local_failure("'" + path + "' cannot be written");
  return {};
}

Answer<> delete_keys(const Session& session) {
  const auto keys = std::span(session.arguments.words).subspan(1);
  constexpr std::array<std::string_view, 1> kOptions = {"kv-group"};
  for (const std::string& key : keys) {
    const std::string path =
        session.cache_path("/keys/") + client::percent_encoded(key) + session.query(kOptions);
    if (auto gone = session.client.call("DELETE", path); !gone) return std::move(gone).error();
    if (!session.arguments.json) session.out << key << " was deleted\n";
  }
  session.print_json({{"deleted", std::vector<std::string>(keys.begin(), keys.end())}});
  return {};
}

Answer<> list_blocks(const Session& session) {
  constexpr std::array<std::string_view, 4> kOptions = {"tier", "state", "limit", "cursor"};
  auto list = session.client.call("GET", session.cache_path("/blocks") + session.query(kOptions));
  if (!list) return std::move(list).error();
  if (session.print_json(*list)) return {};
  return printed([&] {
    TextTable table({"KEY", "TIER", "SLOT", "STATE", "KV GROUP", "PARENT", "PRIORITY", "LAST USE"});
    const auto text = [](const json& value) {
      return value.is_string() ? value.get<std::string>() : std::string("-");
    };
    for (const json& block : list->at("blocks")) {
      table.add({text(block.at("key")), block.at("tier"), block.at("slot").dump(),
                 block.at("state"), block.value("kv_group", "-"), text(block.at("parent")),
                 block.at("priority").dump(), time_text(block.at("last_use_ms"))});
    }
    table.print(session.out);
    print_cursor(*list, session.out);
  });
}

Answer<> list_leases(const Session& session) {
  constexpr std::array<std::string_view, 2> kOptions = {"limit", "cursor"};
  auto list = session.client.call("GET", session.cache_path("/leases") + session.query(kOptions));
  if (!list) return std::move(list).error();
  if (session.print_json(*list)) return {};
  return printed([&] {
    TextTable table({"LEASE", "TOKEN", "ENDS", "DEVICE", "PINNED", "DISK"});
    for (const json& lease : list->at("leases")) {
      const json& token = lease.at("token");
      std::vector<std::string> row = {lease.at("lease"),
                                      token.is_null() ? std::string("-") : token.get<std::string>(),
                                      time_text(lease.at("expires_at_ms"))};
      for (const char* tier : {"device", "pinned", "disk"}) {
        row.push_back(std::to_string(lease.at("blocks").value(tier, std::uint64_t{0})));
      }
      table.add(std::move(row));
    }
    table.print(session.out);
    print_cursor(*list, session.out);
  });
}

Answer<> end_lease(const Session& session) {
  auto released =
      session.client.call("DELETE", "/v1/leases/" + client::percent_encoded(session.word(0)));
  if (!released) return std::move(released).error();
  if (session.print_json(*released)) return {};
  return printed(
      [&] { session.out << released->at("released").dump() << " blocks were given up\n"; });
}

}  // namespace cairn::ctl
