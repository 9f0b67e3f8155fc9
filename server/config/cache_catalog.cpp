#include "server/config/cache_catalog.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>
#include <system_error>

#include "base/durable_file.hpp"
#include "base/hash.hpp"
#include "base/hex.hpp"
#include "blockmgr/index/cache_name.hpp"
#include "server/codec/cache_body.hpp"
#include "server/codec/ids.hpp"

namespace cairn {
namespace {

// Of a body as it is written without spaces, its members in the order of their names; with the
// cache's name, so that the description of one is not taken for another's.
std::string checksum_of(const json& body, const std::string& name) {
  const std::string text = name + "\n" + body.dump();
  const std::uint64_t hash = hash_bytes(std::as_bytes(std::span(text)), 0);
  return to_hex(std::as_bytes(std::span(&hash, 1)));
}

Result<json> read_document(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) return Error{ErrorCode::io_error, "it cannot be read"};
  return parse_document(text.str());
}

Result<json> read_body(const std::filesystem::path& path, const std::string& name) {
  auto document = read_document(path);
  if (!document) return std::move(document).error();
  const auto body = document->find("cache");
  const auto checksum = document->find("checksum");
  const bool whole = document->is_object() && body != document->end() &&
                     checksum != document->end() && *checksum == json(checksum_of(*body, name));
  if (!whole) return Error{ErrorCode::checksum_mismatch, "it does not have its checksum"};
  return Result<json>(boost::system::in_place_value, *body);
}

Result<CacheConfig> read_file(const std::filesystem::path& path, const std::string& name) {
  auto body = read_body(path, name);
  if (!body) return std::move(body).error();
  return read_cache_body(*body, name);
}

// What a label says without a description: the disk tier, and the defaults of all else.
CacheConfig from_shape(const LabelledFile& file) {
  CacheConfig cache{.name = file.label.owner, .shape = file.label.shape, .tiers = {}};
  cache.shape.num_blocks = 0;
  cache.shape.alignment = kDefaultAlignment;
  cache.tiers[index_of(Tier::disk)] = TierConfig{
      .num_blocks = static_cast<std::uint32_t>(file.label.shape.num_blocks), .path = file.path};
  return cache;
}

}  // namespace

Result<CacheConfig> CacheCatalog::from_slot_file(const std::string& name) const {
  for (const LabelledFile& file : manager_.labelled_files()) {
    if (file.label.owner != name) continue;
    if (file.label.description.empty()) return from_shape(file);
    auto body = parse_document(file.label.description);
    if (!body) return std::move(body).error();
    return read_cache_body(*body, name);
  }
  return Error{ErrorCode::not_found, "no slot file is this cache's"};
}

Result<std::vector<CacheConfig>> CacheCatalog::remembered() {
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
    if (!cache) {
      ++damaged_;
      const Error why = std::move(cache).error();
      cache = from_slot_file(name);
      const std::string rebuilt =
          cache ? "from the label of its slot file" : "no: " + cache.error().detail;
      log_.error("the description of a remembered cache is damaged",
                 {{"file", entry.path().string()}, {"why", why.detail}, {"rebuilt", rebuilt}});
    }
    if (cache) caches.push_back(std::move(*cache));
  }
  if (error) {
    return Error{ErrorCode::io_error, folder_.string() + " cannot be listed: " + error.message()};
  }
  std::ranges::sort(caches, {}, &CacheConfig::name);
  return caches;
}

Result<> CacheCatalog::remember(const CacheConfig& cache) {
  if (!cache.tiers[index_of(Tier::disk)]) return {};
  const json body = cache_config_body(cache);
  // The label first: what a damaged file is made up for with is never older than the file.
  CAIRN_TRY(manager_.describe_cache(cache.name, body.dump()));
  const auto there = read_body(file_of(cache.name), cache.name);
  if (there && *there == body) return {};
  const json document = {{"cache", body}, {"checksum", checksum_of(body, cache.name)}};
  const std::string text = document.dump(1) + "\n";
  return write_durably(file_of(cache.name), std::as_bytes(std::span(text)));
}

Result<> CacheCatalog::forget(const std::string& name) { return remove_durably(file_of(name)); }

}  // namespace cairn
