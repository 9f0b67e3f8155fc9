#include "server/config/restore_setting.hpp"

#include <future>

#include "blockmgr/index/cache_name.hpp"
#include "server/codec/ids.hpp"

namespace cairn {

Result<RestoreSetting> parse_restore(std::string_view text) {
  const auto equals = text.find('=');
  RestoreSetting setting;
  std::string_view source = text;
  if (equals != std::string_view::npos && is_cache_name(text.substr(0, equals))) {
    setting.cache = text.substr(0, equals);
    source = text.substr(equals + 1);
  }
  if (source.find('/') != std::string_view::npos) {
    setting.file = source;
    return setting;
  }
  setting.name = source;
  if (!setting.cache.empty() && !setting.name.empty()) return setting;
  return Error{ErrorCode::malformed,
               "is '" + std::string(text.substr(0, 200)) +
                   "'; it takes CACHE=NAME, CACHE=FILE or FILE, a file with a slash in its path"};
}

namespace {

Result<std::shared_ptr<Cache>> cache_for(BlockManager& manager, const RestoreSetting& setting,
                                         const std::filesystem::path& file) {
  auto config = manager.snapshots().configuration(file);
  if (!config) return std::move(config).error();
  if (!setting.cache.empty()) config->name = setting.cache;
  if (auto there = manager.find_cache(config->name)) return there;
  auto created = manager.create_cache(*config);
  if (!created) return std::move(created).error();
  return std::move(created->cache);
}

Result<TransferStatus> wait_for(BlockManager& manager, TransferId id) {
  // Shared, because the callback may still run when the waiter continues.
  auto ended = std::make_shared<std::promise<TransferStatus>>();
  auto watched = manager.watch_transfer(
      id, [ended](const TransferStatus& status) { ended->set_value(status); });
  if (!watched) return std::move(watched).error();
  return ended->get_future().get();
}

Result<TransferStatus> restore(BlockManager& manager, const RestoreSetting& setting) {
  std::filesystem::path file = setting.file;
  if (file.empty()) {
    auto named = manager.snapshots().file_of(setting.cache, setting.name);
    if (!named) return std::move(named).error();
    file = std::move(*named);
  }
  auto cache = cache_for(manager, setting, file);
  if (!cache) return std::move(cache).error();
  auto id = manager.snapshots().restore(*cache, {.file = file, .partial = true});
  if (!id) return std::move(id).error();
  auto status = wait_for(manager, *id);
  if (status && status->error) return std::move(*status->error);
  return status;
}

}  // namespace

Result<> restore_at_start(BlockManager& manager, const RestoreSetting& setting, Logger& log) {
  const std::string source = setting.file.empty() ? setting.name : setting.file.string();
  auto status = restore(manager, setting);
  if (!status) {
    return Error{status.error().code, "--restore: " + source + ": " + status.error().detail};
  }
  log.info("snapshot restored",
           {{"snapshot", source}, {"blocks", status->blocks_done}, {"bytes", status->bytes}});
  return {};
}

}  // namespace cairn
