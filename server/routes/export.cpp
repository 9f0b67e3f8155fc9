#include "server/codec/tier_memory.hpp"
#include "server/routes/common.hpp"
#include "server/routes/handlers.hpp"

namespace cairn::routes {

void export_tier(Service& service, const Call& call, std::shared_ptr<Cache> cache, Reply reply) {
  const auto tier = tier_from(call.path[1]);
  if (!tier) {
    return reply.error({ErrorCode::unknown_tier, "there is no tier '" +
                                                     std::string(call.path[1].substr(0, 64)) +
                                                     "'; it is one of device, pinned, disk"});
  }
  // A device's memory is asked for of its driver.
  answer_on(service.admin, std::move(reply),
            [&service, cache = std::move(cache), tier = *tier,
             passes_files = call.head.passes_files](Reply& answer) {
              auto memory = cache->export_tier(tier, passes_files);
              if (!memory) return answer.error(memory.error());
              std::shared_ptr<const FileDescriptor> file = std::move(memory->memory.file);
              if (file != nullptr) memory->descriptor = 0;
              service.log.debug("tier exported",
                                {{"cache", cache->config().name}, {"tier", to_string(tier)}});
              tell_memory(answer, cache->memory_id());
              answer.document(200, tier_memory_body(*memory), std::move(file));
            });
}

}  // namespace cairn::routes
