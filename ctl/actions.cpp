// Actions and the pins that they make.
#include <array>

#include "ctl/command.hpp"
#include "ctl/text_table.hpp"

namespace cairn::ctl {
namespace {

json body_of(const Session& session) {
  const auto& words = session.arguments.words;
  json action = {{"type", words[1]}};
  if (session.arguments.has("session")) {
    action["target"] = {{"session", words[2]}};
  } else {
    action["target"] = {{"keys", std::vector<std::string>(words.begin() + 2, words.end())}};
  }
  for (const char* name : {"ttl-ms", "priority"}) {
    if (!session.arguments.has(name)) continue;
    const char* field = std::string_view(name) == "ttl-ms" ? "ttl_ms" : name;
    action[field] = session.arguments.number(name, 0);
  }
  if (session.arguments.has("tier")) action["to"] = session.arguments.text("tier");
  return {{"actions", {action}}};
}

void print_result(const json& result, std::ostream& out) {
  out << result.at("outcome").get<std::string>() << ": " << result.at("blocks").dump()
      << " blocks, " << result.at("missing").dump() << " missing";
  if (result.contains("reason")) out << " (" << result.at("reason").get<std::string>() << ")";
  out << "\n";
  for (const char* name : {"pin", "transfer"}) {
    if (result.contains(name)) out << name << " " << result.at(name).get<std::string>() << "\n";
  }
}

}  // namespace

Answer<> act(const Session& session) {
  if (session.arguments.has("session") && session.arguments.words.size() != 3) {
    return local_failure("--session takes one name");
  }
  auto answer = session.client.call("POST", session.cache_path("/actions"), body_of(session));
  if (!answer) return std::move(answer).error();
  if (session.print_json(*answer)) return {};
  return printed([&] { print_result(answer->at("results").at(0), session.out); });
}

Answer<> list_pins(const Session& session) {
  constexpr std::array<std::string_view, 2> kOptions = {"limit", "cursor"};
  auto list = session.client.call("GET", session.cache_path("/pins") + session.query(kOptions));
  if (!list) return std::move(list).error();
  if (session.print_json(*list)) return {};
  return printed([&] {
    TextTable table({"PIN", "TOKEN", "SESSION", "BLOCKS", "SIZE", "ENDS"});
    for (const json& pin : list->at("pins")) {
      const json& token = pin.at("token");
      table.add({pin.at("pin"), token.is_null() ? std::string("-") : token.get<std::string>(),
                 pin.value("session", "-"), pin.at("blocks").dump(), bytes_text(pin.at("bytes")),
                 time_text(pin.at("expires_at_ms"))});
    }
    table.print(session.out);
    print_cursor(*list, session.out);
  });
}

Answer<> end_pin(const Session& session) {
  auto ended =
      session.client.call("DELETE", "/v1/pins/" + client::percent_encoded(session.word(0)));
  if (!ended) return std::move(ended).error();
  if (session.print_json(*ended)) return {};
  return printed([&] { session.out << ended->at("blocks").dump() << " blocks may go now\n"; });
}

Answer<> list_sessions(const Session& session) {
  constexpr std::array<std::string_view, 1> kOptions = {"limit"};
  auto list = session.client.call("GET", session.cache_path("/sessions") + session.query(kOptions));
  if (!list) return std::move(list).error();
  if (session.print_json(*list)) return {};
  return printed([&] {
    TextTable table(
        {"SESSION", "TOKEN", "DEVICE", "PINNED", "DISK", "MISSING", "BYTES", "LAST USE"});
    for (const json& one : list->at("sessions")) {
      const json& token = one.at("token");
      std::vector<std::string> row = {
          one.at("session"), token.is_null() ? std::string("-") : token.get<std::string>()};
      for (const char* tier : kTierNames) {
        row.push_back(std::to_string(one.at("blocks").value(tier, std::uint64_t{0})));
      }
      row.push_back(one.at("missing").dump());
      row.push_back(bytes_text(one.at("bytes")));
      row.push_back(time_text(one.at("last_use_ms")));
      table.add(std::move(row));
    }
    table.print(session.out);
    const std::uint64_t known = list->at("known");
    if (known > list->at("sessions").size()) session.out << known << " conversations are known\n";
  });
}

}  // namespace cairn::ctl
