#include "metrics/families.hpp"
#include "metrics/parts.hpp"

namespace cairn {

void add_engine_memories(std::vector<prometheus::MetricFamily>& out,
                         const EngineMemoryStats& stats) {
  using Builder = MetricFamilyBuilder;
  auto engine_memories = Builder::gauge({"cairn_agents", "Engines that registered memory."});
  engine_memories.add({}, stats.engine_memories);
  auto blocks = Builder::counter(
      {"cairn_agent_blocks_total",
       "Blocks copied to (load) and from (store) the memory of agents, by outcome."});
  auto bytes = Builder::counter(
      {"cairn_agent_bytes_total", "Bytes copied to and from the memory of agents."});
  const auto add = [&](std::string_view direction, const EngineMemoryStats::Direction& one) {
    blocks.add({{"direction", direction}, {"outcome", "done"}}, one.done_blocks);
    blocks.add({{"direction", direction}, {"outcome", "failed"}}, one.failed_blocks);
    bytes.add({{"direction", direction}}, one.bytes);
  };
  add("load", stats.loads);
  add("store", stats.stores);
  for (Builder* builder : {&engine_memories, &blocks, &bytes})
    out.push_back(std::move(*builder).take());
}

}  // namespace cairn
