#include "server/config/cache_catalog.hpp"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <system_error>

#include "base/durable_file.hpp"
#include "server/codec/cache_body.hpp"
#include "server/codec/ids.hpp"

namespace cairn {
namespace {

Result<CacheConfig> read_file(const std::filesystem::path& path, const std::string& name) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    return Error{ErrorCode::io_error, path.string() + " cannot be read"};
  }
  auto document = parse_document(text.str());
  if (!document) return std::move(document).error();
  return read_cache_body(*document, name);
}

}  // namespace

Result<std::vector<CacheConfig>> CacheCatalog::remembered(Logger& log) const {
  std::vector<CacheConfig> caches;
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) {
    return Error{ErrorCode::io_error, folder_.string() + " cannot be made: " + error.message()};
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
    const std::string name = entry.path().stem().string();
    if (entry.path().extension() != ".json" || !is_cache_name(name)) continue;
    auto cache = read_file(entry.path(), name);
    if (cache) {
      caches.push_back(std::move(*cache));
    } else {
      log.error("a remembered cache cannot be read",
                {{"file", entry.path().string()}, {"detail", cache.error().detail}});
    }
  }
  if (error) {
    return Error{ErrorCode::io_error, folder_.string() + " cannot be listed: " + error.message()};
  }
  std::ranges::sort(caches, {}, &CacheConfig::name);
  return caches;
}

Result<> CacheCatalog::remember(const CacheConfig& cache) const {
  if (!cache.tiers[index_of(Tier::disk)]) return {};
  const std::string text = cache_config_body(cache).dump(1) + "\n";
  return write_durably(file_of(cache.name), std::as_bytes(std::span(text)));
}

Result<> CacheCatalog::forget(const std::string& name) const {
  return remove_durably(file_of(name));
}

}  // namespace cairn
