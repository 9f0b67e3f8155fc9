#include "blockmgr/index/cache_name.hpp"
#include "server/codec/cache_body.hpp"
#include "server/codec/ids.hpp"
#include "server/codec/tier_memory_body.hpp"
#include "server/routes/common.hpp"
#include "server/routes/handlers.hpp"

namespace cairn::routes {
namespace {

// Puts the open files sent with the request into the imports.
Result<> take_files(CacheConfig& config, const Call& call) {
  for (Tier tier : kTiers) {
    auto& wanted = config.tiers[index_of(tier)];
    if (!wanted || !wanted->import || !wanted->import->descriptor) continue;
    auto file =
        passed_file(call, "tiers." + std::string(to_string(tier)) + ".memory.import.descriptor",
                    *wanted->import->descriptor);
    if (!file) return std::move(file).error();
    wanted->import->memory.file = std::move(*file);
  }
  return {};
}

}  // namespace

void list_caches(Service& service, const Call& call, Reply reply) {
  auto all = service.manager.caches();
  std::erase_if(all, [&](const auto& cache) { return !call.may_touch(cache->config().name); });
  answer_on(service.readers, std::move(reply), [all = std::move(all)](Reply& answer) {
    ordered_json caches = ordered_json::array();
    for (const auto& cache : all) caches.push_back(cache_status(*cache));
    answer.document(200, {{"caches", std::move(caches)}});
  });
}

void put_cache(Service& service, const Call& call, Reply reply) {
  const std::string name(call.path[0]);
  if (!is_cache_name(name)) {
    return reply.error({ErrorCode::malformed, "the cache's name is '" + name.substr(0, 80) + "'; " +
                                                  std::string(kCacheNameRule)});
  }
  auto config = read_body(call, kMaxDocumentValues,
                          [&name](Fields& fields) { return read_cache_fields(fields, name); });
  if (!config) return reply.error(config.error());
  if (auto taken = take_files(*config, call); !taken) return reply.error(taken.error());
  answer_on(service.admin, std::move(reply),
            [&service, config = std::move(*config)](Reply& answer) {
              auto created = service.manager.create_cache(config);
              if (!created) return answer.error(created.error());
              if (created->is_new) {
                // If it cannot be remembered, the next start would not know it: undo it.
                if (auto kept = service.catalog.remember(config); !kept) {
                  service.manager.take_back(*created);
                  return answer.error(kept.error());
                }
                service.unmade.remove(config.name);
                // Set up its shared tier before a block can leave the cache.
                if (service.shared != nullptr) service.shared->of(created->cache);
                service.log.info("cache made", {{"cache", config.name}});
              }
              if (!created->is_new) return answer.document(200, cache_shape(*created->cache));
              answer.located(201, cache_path(config.name), cache_shape(*created->cache));
            });
}

void patch_cache(Service& service, const Call& call, std::shared_ptr<Cache> cache, Reply reply) {
  auto change = read_body(call, kMaxDocumentValues, read_cache_change);
  if (!change) return reply.error(change.error());
  answer_on(service.admin, std::move(reply),
            [&service, cache = std::move(cache), change = std::move(*change)](Reply& answer) {
              const auto remember = [&service](const CacheConfig& config) {
                return service.catalog.remember(config);
              };
              if (auto changed = cache->change(change, remember); !changed) {
                return answer.error(changed.error());
              }
              service.log.info("cache changed", {{"cache", cache->config().name}});
              answer.document(200, cache_status(*cache));
            });
}

void get_cache(Service& service, const Call&, std::shared_ptr<Cache> cache, Reply reply) {
  answer_on(service.readers, std::move(reply), [cache = std::move(cache)](Reply& answer) {
    answer.document(200, cache_status(*cache));
  });
}

void delete_cache(Service& service, const Call& call, Reply reply) {
  auto cache = cache_of(service, call);
  // Also deletes a cache that the start could not make; its files stay.
  if (!cache && !service.unmade.contains(call.path[0])) return reply.error(cache.error());
  Query query(call.head.query);
  const bool force = query.flag("force").value_or(false);
  if (auto read = query.finish(); !read) return reply.error(read.error());
  answer_on(service.admin, std::move(reply),
            [&service, name = std::string(call.path[0]), force](Reply& answer) {
              std::uint64_t leases_ended = 0;
              if (!service.unmade.remove(name)) {
                const auto ended = service.manager.drop_cache(name, force);
                if (!ended) return answer.error(ended.error());
                leases_ended = *ended;
              }
              if (auto forgotten = service.catalog.forget(name); !forgotten) {
                return answer.error(forgotten.error());
              }
              service.log.info("cache dropped", {{"cache", name}, {"leases_ended", leases_ended}});
              answer.empty(204);
            });
}

void export_tier(Service& service, const Call& call, std::shared_ptr<Cache> cache, Reply reply) {
  const auto tier = tier_from(call.path[1]);
  if (!tier) {
    return reply.error({ErrorCode::unknown_tier, "there is no tier '" +
                                                     std::string(call.path[1].substr(0, 64)) +
                                                     "'; it is one of device, pinned, disk"});
  }
  // On `admin`, because the driver must export a device's memory.
  answer_on(service.admin, std::move(reply),
            [&service, cache = std::move(cache), tier = *tier,
             passes_files = call.head.passes_files](Reply& answer) {
              auto memory = cache->export_tier(tier, passes_files);
              if (!memory) return answer.error(memory.error());
              std::shared_ptr<const FileDescriptor> file = std::move(memory->memory.file);
              if (file != nullptr) memory->descriptor = 0;
              service.log.debug("tier exported",
                                {{"cache", cache->config().name}, {"tier", to_string(tier)}});
              add_memory_id(answer, cache->memory_id());
              answer.document(200, tier_memory_body(*memory), std::move(file));
            });
}

}  // namespace cairn::routes
