// The traffic of the last hour, for the status page.
#include <limits>
#include <string>

#include "server/routes/common.hpp"
#include "server/routes/handlers.hpp"

namespace cairn::routes {
namespace {

ordered_json sample_body(const TrafficHistory::Sample& sample) {
  ordered_json moved = ordered_json::array();
  for (Tier from : kTiers) {
    for (Tier to : kTiers) {
      const std::uint64_t bytes = sample.moved[index_of(from)][index_of(to)];
      if (bytes == 0) continue;
      moved.push_back({{"from", to_string(from)}, {"to", to_string(to)}, {"bytes", bytes}});
    }
  }
  return {{"number", sample.number},
          {"ended_at_ms", sample.ended_unix_ms},
          {"duration_ms", sample.duration_ms},
          {"requests", sample.requests},
          {"asked_blocks", sample.asked_blocks},
          {"found_blocks", sample.found_blocks},
          {"received_bytes", sample.received_bytes},
          {"sent_bytes", sample.sent_bytes},
          {"moved", std::move(moved)}};
}

}  // namespace

void history(Service& service, const Call& call, Reply reply) {
  Query query(call.head.query);
  const auto after =
      query.number("after", {.min = 0, .max = std::numeric_limits<std::int64_t>::max()});
  if (auto read = query.finish(); !read) return reply.error(read.error());
  answer_on(service.readers, std::move(reply),
            [&service, number = after.value_or(0)](Reply& answer) {
              ordered_json samples = ordered_json::array();
              for (const auto& sample : service.history.after(number))
                samples.push_back(sample_body(sample));
              answer.document(
                  200, {{"period_ms", std::chrono::milliseconds(TrafficHistory::kPeriod).count()},
                        {"kept_ms", std::chrono::milliseconds(TrafficHistory::kPeriod).count() *
                                        std::int64_t{TrafficHistory::kMostSamples}},
                        {"samples", std::move(samples)}});
            });
}

}  // namespace cairn::routes
