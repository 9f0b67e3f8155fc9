// Transfers and snapshots: work that takes a while.
#include "ctl/command.hpp"
#include "ctl/text_table.hpp"

namespace cairn::ctl {
namespace {

// The longest wait in one request; the request is repeated.
constexpr std::uint64_t kWaitMs = 10'000;

bool has_ended(const json& transfer) {
  const std::string state = transfer.value("state", "");
  return state == "done" || state == "failed" || state == "cancelled";
}

std::string transfer_path(const std::string& id) {
  return "/v1/transfers/" + client::percent_encoded(id);
}

void print_transfer(const json& transfer, std::ostream& out) {
  out << transfer.at("transfer").get<std::string>() << " "
      << transfer.at("state").get<std::string>() << ": " << transfer.at("blocks_done").dump()
      << " of " << transfer.at("blocks_total").dump() << " blocks, "
      << bytes_text(transfer.at("bytes")) << "\n";
  for (const json& failure : transfer.at("failures")) {
    out << "  " << failure.at("key").get<std::string>() << ": "
        << failure.at("detail").get<std::string>() << "\n";
  }
}

// Prints it; if the transfer failed, the command fails too.
Answer<> report(const Session& session, const json& transfer) {
  if (!session.print_json(transfer)) {
    CAIRN_TRY(printed([&] { print_transfer(transfer, session.out); }));
  }
  const std::string state = transfer.value("state", "");
  if (state != "failed" && state != "cancelled") return {};
  const json error = transfer.value("error", json::object());
  return ClientError{0, error.value("code", "transfer_" + state),
                     error.value("detail", "the transfer was not done")};
}

Answer<> follow(const Session& session, Answer<json> started) {
  while (started && !session.arguments.has("no-wait") && !has_ended(*started)) {
    auto id = client::field_from<std::string>(*started, "transfer");
    if (!id) return std::move(id).error();
    started =
        session.client.call("GET", transfer_path(*id) + "?wait_ms=" + std::to_string(kWaitMs));
  }
  if (!started) return std::move(started).error();
  return report(session, *started);
}

std::string snapshot_path(const Session& session) {
  return session.cache_path("/snapshots/") + client::percent_encoded(session.word(1));
}

}  // namespace

Answer<> list_transfers(const Session& session) {
  constexpr std::array<std::string_view, 4> kOptions = {"cache", "state", "limit", "cursor"};
  auto list = session.client.call("GET", "/v1/transfers" + session.query(kOptions));
  if (!list) return std::move(list).error();
  if (session.print_json(*list)) return {};
  return printed([&] {
    TextTable table({"TRANSFER", "CACHE", "STATE", "DONE", "FAILED", "OF", "MOVED"});
    for (const json& one : list->at("transfers")) {
      const json& cache = one.at("cache");
      table.add({one.at("transfer"), cache.is_null() ? std::string("-") : cache.get<std::string>(),
                 one.at("state"), one.at("blocks_done").dump(), one.at("blocks_failed").dump(),
                 one.at("blocks_total").dump(), bytes_text(one.at("bytes"))});
    }
    table.print(session.out);
    print_cursor(*list, session.out);
  });
}

Answer<> start_transfer(const Session& session) {
  const auto& words = session.arguments.words;
  const json body = {{"keys", std::vector<std::string>(words.begin() + 2, words.end())},
                     {"to", words[1]},
                     {"mode", session.arguments.has("move") ? "move" : "copy"}};
  return follow(session, session.client.call("POST", session.cache_path("/transfers"), body));
}

Answer<> drain(const Session& session) {
  json body = json::object();
  if (session.arguments.has("tier")) body["to"] = session.arguments.text("tier");
  return follow(session, session.client.call("POST", session.cache_path("/drain"), body));
}

Answer<> list_pending(const Session& session) {
  constexpr std::array<std::string_view, 2> kOptions = {"limit", "cursor"};
  auto list = session.client.call("GET", session.cache_path("/pending") + session.query(kOptions));
  if (!list) return std::move(list).error();
  if (session.print_json(*list)) return {};
  return printed([&] {
    TextTable table({"KEY", "FROM", "TO", "AGE"});
    for (const json& one : list->at("pending")) {
      table.add({one.at("key"), one.at("from"), one.at("to"), duration_text(one.at("age_ms"))});
    }
    table.print(session.out);
    print_cursor(*list, session.out);
  });
}

Answer<> show_transfer(const Session& session) {
  auto transfer = session.client.call("GET", transfer_path(session.word(0)));
  if (!transfer) return std::move(transfer).error();
  if (session.print_json(*transfer)) return {};
  return printed([&] { print_transfer(*transfer, session.out); });
}

Answer<> cancel_transfer(const Session& session) {
  auto transfer = session.client.call("DELETE", transfer_path(session.word(0)));
  if (!transfer) return std::move(transfer).error();
  if (session.print_json(*transfer)) return {};
  return printed([&] { print_transfer(*transfer, session.out); });
}

Answer<> list_snapshots(const Session& session) {
  auto list = session.client.call("GET", session.cache_path("/snapshots"));
  if (!list) return std::move(list).error();
  if (session.print_json(*list)) return {};
  return printed([&] {
    TextTable table({"SNAPSHOT", "BLOCKS", "SIZE", "MADE", "FORM"});
    for (const json& one : list->at("snapshots")) {
      const bool broken = one.contains("error");
      table.add({one.at("name"), one.at("blocks").dump(), bytes_text(one.at("bytes")),
                 broken ? "-" : time_text(one.at("created_at_ms")),
                 broken                         ? "broken"
                 : one.at("compressed") == true ? "zstd"
                                                : "plain"});
    }
    table.print(session.out);
  });
}

Answer<> make_snapshot(const Session& session) {
  const json body = {{"name", session.word(1)}, {"compress", session.arguments.has("compress")}};
  return follow(session, session.client.call("POST", session.cache_path("/snapshots"), body));
}

Answer<> restore_snapshot(const Session& session) {
  const json body = {{"partial", session.arguments.has("partial")},
                     {"replace", session.arguments.has("replace")}};
  return follow(session, session.client.call("POST", snapshot_path(session) + "/restore", body));
}

Answer<> delete_snapshot(const Session& session) {
  auto gone = session.client.call("DELETE", snapshot_path(session));
  if (!gone) return std::move(gone).error();
  if (!session.arguments.json) session.out << session.word(1) << " was deleted\n";
  return {};
}

}  // namespace cairn::ctl
