#include "metrics/families.hpp"
#include "metrics/parts.hpp"

namespace cairn {

void add_agents(std::vector<prometheus::MetricFamily>& out, const AgentStats& stats) {
  using Builder = MetricFamilyBuilder;
  auto agents = Builder::gauge({"cairn_agents", "Engines that registered memory."});
  agents.add({}, stats.agents);
  auto blocks = Builder::counter(
      {"cairn_agent_blocks_total",
       "Blocks copied to (load) and from (store) the memory of agents, by outcome."});
  auto bytes = Builder::counter(
      {"cairn_agent_bytes_total", "Bytes copied to and from the memory of agents."});
  const auto add = [&](std::string_view direction, const AgentStats::Direction& one) {
    blocks.add({{"direction", direction}, {"outcome", "done"}}, one.done_blocks);
    blocks.add({{"direction", direction}, {"outcome", "failed"}}, one.failed_blocks);
    bytes.add({{"direction", direction}}, one.bytes);
  };
  add("load", stats.loads);
  add("store", stats.stores);
  for (Builder* builder : {&agents, &blocks, &bytes}) out.push_back(std::move(*builder).take());
}

}  // namespace cairn
