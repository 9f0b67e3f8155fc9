#include "transport/s3/object_catalogue.hpp"

#include <algorithm>
#include <utility>

#include "base/hash.hpp"

namespace cairn {

std::uint64_t ObjectCatalogue::hash_of(std::string_view name) const {
  return hash_bytes(std::as_bytes(std::span(name)), seed_);
}

void ObjectCatalogue::add(Added added, std::span<const ObjectEntry> entries) {
  MutexLock lock(mutex_);
  const auto [object, is_new] = objects_.try_emplace(std::move(added.name));
  if (!is_new) return;
  object->second.size_bytes = added.size_bytes;
  object->second.last_use_unix_ms = added.last_use_unix_ms;
  total_bytes_ += added.size_bytes;
  object->second.names.reserve(entries.size());
  const auto longest = std::ranges::max_element(entries, {}, &ObjectEntry::ttl_ms);
  const bool has_limits =
      std::ranges::all_of(entries, [](const ObjectEntry& entry) { return entry.ttl_ms != 0; });
  if (has_limits && longest != entries.end()) object->second.longest_ttl_ms = longest->ttl_ms;
  for (const ObjectEntry& entry : entries) {
    const std::uint64_t hash = hash_of(entry.name);
    object->second.names.push_back(hash);
    if (const auto known = places_.find(hash); known != places_.end()) {
      if (known->second.object->first <= object->first) continue;
      erase(known);
    }
    places_.insert_or_assign(hash, Where{.object = object,
                                         .offset = entry.offset,
                                         .size_bytes = entry.size_bytes,
                                         .ttl_ms = entry.ttl_ms});
    object->second.live_bytes += entry.size_bytes;
    live_bytes_ += entry.size_bytes;
  }
}

void ObjectCatalogue::erase(Places::iterator place) {
  place->second.object->second.live_bytes -= place->second.size_bytes;
  live_bytes_ -= place->second.size_bytes;
  places_.erase(place);
}

void ObjectCatalogue::drop(std::string_view name) {
  MutexLock lock(mutex_);
  const auto object = objects_.find(name);
  if (object == objects_.end()) return;
  for (const std::uint64_t hash : object->second.names) {
    const auto place = places_.find(hash);
    if (place != places_.end() && place->second.object == object) erase(place);
  }
  total_bytes_ -= object->second.size_bytes;
  objects_.erase(object);
}

std::vector<bool> ObjectCatalogue::has(std::span<const std::string> names,
                                       std::int64_t now_unix_ms) const {
  MutexLock lock(mutex_);
  std::vector<bool> there;
  for (const std::string& name : names) there.push_back(find(name, now_unix_ms).has_value());
  return there;
}

std::optional<ObjectCatalogue::Place> ObjectCatalogue::find(std::string_view name,
                                                            std::int64_t now_unix_ms) const {
  const auto place = places_.find(hash_of(name));
  if (place == places_.end()) return std::nullopt;
  const Where& where = place->second;
  const auto unused_ms = now_unix_ms - where.object->second.last_use_unix_ms;
  if (where.ttl_ms != 0 && unused_ms >= 0 &&
      where.ttl_ms <= static_cast<std::uint64_t>(unused_ms)) {
    return std::nullopt;
  }
  return Place{
      .object = &where.object->first, .offset = where.offset, .size_bytes = where.size_bytes};
}

void ObjectCatalogue::used(std::string_view name, std::int64_t unix_ms) {
  MutexLock lock(mutex_);
  const auto object = objects_.find(name);
  if (object == objects_.end()) return;
  object->second.last_use_unix_ms = std::max(object->second.last_use_unix_ms, unix_ms);
}

void ObjectCatalogue::forget(std::string_view name) {
  MutexLock lock(mutex_);
  if (const auto place = places_.find(hash_of(name)); place != places_.end()) erase(place);
}

}  // namespace cairn
