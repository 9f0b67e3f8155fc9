// Blocks by their keys.
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
                     {"lease_ms", session.arguments.number("lease-ms", 0)}};
  auto found = session.client.call("POST", session.cache_path("/match"), body);
  if (!found) return std::move(found).error();
  if (session.print_json(*found)) return {};
  return printed([&] {
    const json& blocks = found->at("blocks");
    session.out << blocks.size() << " of " << words.size() - 1 << " keys are there\n";
    if (blocks.empty()) return;
    TextTable table({"KEY", "TIER", "SLOT", "GENERATION"});
    for (const json& block : blocks) {
      table.add({block.at("key"), block.at("tier"), block.at("slot").dump(),
                 block.at("generation").dump()});
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

  std::string target = key_path(session);
  char mark = '?';
  for (const char* option : {"parent", "tier", "ttl-ms"}) {
    if (!session.arguments.has(option)) continue;
    const std::string name = std::string_view(option) == "ttl-ms" ? "ttl_ms" : option;
    target += mark + name + "=" + client::percent_encoded(session.arguments.text(option));
    mark = '&';
  }
  const client::HttpHeader header{"Content-Type", "application/octet-stream"};
  const auto body = std::as_bytes(std::span(bytes));
  auto response = exchange(
      session, {.method = "PUT", .target = target, .headers = {&header, 1}, .body = {&body, 1}});
  if (!response) return std::move(response).error();
  if (session.print_json(json::parse(response->body, nullptr, false))) return {};
  session.out << session.word(1)
              << (response->status == 201 ? " was stored\n" : " was there already\n");
  return {};
}

Answer<> get(const Session& session) {
  auto response = exchange(session, {.target = key_path(session)});
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

}  // namespace cairn::ctl
