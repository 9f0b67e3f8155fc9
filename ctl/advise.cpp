// What more memory would gain for a cache, in words.
#include "ctl/command.hpp"
#include "ctl/text_table.hpp"

namespace cairn::ctl {
namespace {

std::string percent(double share) { return percent_text(share, 1); }

}  // namespace

Answer<> advise(const Session& session) {
  auto ratio = session.client.call("GET", session.cache_path("/miss_ratio"));
  if (!ratio) return std::move(ratio).error();
  if (session.print_json(*ratio)) return {};
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
    session.out << "\n";
    for (const json& line : ratio->at("words")) session.out << line.get<std::string>() << "\n";
  });
}

}  // namespace cairn::ctl
