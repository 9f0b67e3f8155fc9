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

// The content of a file, without its checksum.
struct Description {
  json body;
  std::optional<json> configured;  // nullopt: 0.2 wrote the file

  friend bool operator==(const Description&, const Description&) = default;
};

// Covers both bodies as compact JSON with sorted members, and the cache's name, so that one cache's
// description is not taken for another's.
std::string checksum_of(const Description& description, const std::string& name) {
  std::string text = name + "\n" + description.body.dump();
  if (description.configured) text += "\n" + description.configured->dump();
  const std::uint64_t hash = hash_bytes(std::as_bytes(std::span(text)), 0);
  return to_hex(std::as_bytes(std::span(&hash, 1)));
}

Result<json> read_document(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) return Error{ErrorCode::io_error, "it cannot be read"};
  return parse_document(text.str());
}

Result<Description> read_description(const std::filesystem::path& path, const std::string& name) {
  auto document = read_document(path);
  if (!document) return std::move(document).error();
  const auto body = document->find("cache");
  const auto checksum = document->find("checksum");
  const Error damaged{ErrorCode::checksum_mismatch, "its checksum does not match"};
  if (!document->is_object() || body == document->end() || checksum == document->end()) {
    return damaged;
  }
  Description description{.body = *body, .configured = std::nullopt};
  if (const auto at = document->find("configured"); at != document->end()) {
    description.configured.emplace(*at);
  }
  if (*checksum != json(checksum_of(description, name))) return damaged;
  return description;
}

// The cache of a label without a description: the disk tier, and defaults for everything else.
CacheConfig from_shape(const LabelledFile& file) {
  CacheConfig cache{.name = file.label.owner, .shape = file.label.shape, .tiers = {}};
  cache.shape.num_blocks = 0;
  cache.shape.alignment = kDefaultAlignment;
  cache.tiers[index_of(Tier::disk)] = TierConfig{
      .num_blocks = static_cast<std::uint32_t>(file.label.shape.num_blocks), .path = file.path};
  return cache;
}

}  // namespace

// 0.3 removed the eviction order lrfu. A cache's blocks are worth more than their order, so a cache
// that 0.2 made with lrfu gets the default order.
Result<CacheConfig> CacheCatalog::read_body(json body, const std::string& name) const {
  if (body.is_object() && body.contains("eviction") && body["eviction"] == "lrfu") {
    body.erase("eviction");
    log_.warning("a cache was remembered with eviction lrfu, which this version does not have",
                 {{"cache", name}, {"eviction", to_string(kDefaultEviction)}});
  }
  return read_cache_body(body, name);
}

Result<CacheCatalog::Remembered> CacheCatalog::read_file(const std::string& name) const {
  auto description = read_description(file_of(name), name);
  if (!description) return std::move(description).error();
  auto cache = read_body(std::move(description->body), name);
  if (!cache) return std::move(cache).error();
  return Remembered{.cache = std::move(*cache), .configured = std::move(description->configured)};
}

Result<CacheConfig> CacheCatalog::from_slot_file(const std::string& name) const {
  for (const LabelledFile& file : manager_.labelled_files()) {
    if (file.label.owner != name) continue;
    if (file.label.description.empty() && file.label.shapes_hash != 0) {
      return Error{ErrorCode::impossible,
                   file.path +
                       " belongs to a cache of several KV groups, and its label does not "
                       "describe them; create the cache again with the same body"};
    }
    if (file.label.description.empty()) return from_shape(file);
    auto body = parse_document(file.label.description);
    if (!body) return std::move(body).error();
    return read_body(std::move(*body), name);
  }
  return Error{ErrorCode::not_found, "no slot file belongs to this cache"};
}

Result<std::vector<CacheCatalog::Remembered>> CacheCatalog::remembered() {
  std::vector<Remembered> caches;
  std::error_code error;
  if (!std::filesystem::exists(folder_, error) && !error) return caches;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
    const std::string name = entry.path().stem().string();
    if (entry.path().extension() != ".json" || !is_cache_name(name)) continue;
    auto cache = read_file(name);
    if (!cache) {
      ++damaged_;
      const Error why = std::move(cache).error();
      auto from_label = from_slot_file(name);
      const std::string rebuilt =
          from_label ? "from the label of its slot file" : "no: " + from_label.error().detail;
      if (from_label) {
        cache = Remembered{.cache = std::move(*from_label), .configured = std::nullopt};
      }
      log_.error("the description of a remembered cache is damaged",
                 {{"file", entry.path().string()}, {"why", why.detail}, {"rebuilt", rebuilt}});
    }
    if (cache) caches.push_back(std::move(*cache));
  }
  if (error) {
    return Error{ErrorCode::io_error, folder_.string() + " cannot be listed: " + error.message()};
  }
  std::ranges::sort(caches, {}, [](const Remembered& one) { return one.cache.name; });
  return caches;
}

void CacheCatalog::configure(const CacheConfig& cache) {
  configured_.insert_or_assign(cache.name, cache_config_body(cache));
}

Result<> CacheCatalog::remember(const CacheConfig& cache) {
  const auto configured = configured_.find(cache.name);
  if (!cache.tiers[index_of(Tier::disk)] && configured == configured_.end()) return {};
  Description now{.body = cache_config_body(cache), .configured = json()};
  if (configured != configured_.end()) *now.configured = configured->second;
  const auto there = read_description(file_of(cache.name), cache.name);
  // Writes the label first. It is then never older than the file, which may be rebuilt from it.
  CAIRN_TRY(manager_.describe_cache(cache.name, now.body.dump()));
  if (there && *there == now) return {};
  const json document = {{"cache", now.body},
                         {"checksum", checksum_of(now, cache.name)},
                         {"configured", *now.configured}};
  const std::string text = document.dump(1) + "\n";
  std::error_code ignored;
  std::filesystem::create_directories(folder_, ignored);
  auto written = write_durably(file_of(cache.name), std::as_bytes(std::span(text)));
  // Restores the label, so that the refused change does not come back through it.
  if (!written && there) {
    static_cast<void>(manager_.describe_cache(cache.name, there->body.dump()));
  }
  return written;
}

Result<> CacheCatalog::forget(const std::string& name) { return remove_durably(file_of(name)); }

}  // namespace cairn
