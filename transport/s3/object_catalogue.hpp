#pragma once

#include <boost/unordered/unordered_flat_map.hpp>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.hpp"
#include "transport/s3/object_format.hpp"

namespace cairn {

// Which value lies where in the bucket, as far as this server knows. A name that two objects have
// belongs to the older one on every server. About 60 bytes per value. One thread changes and reads
// it; has() is thread-safe.
class ObjectCatalogue {
 public:
  // Objects by name, so by age.
  struct Object {
    std::uint64_t size_bytes = 0;       // with the directory
    std::int64_t last_use_unix_ms = 0;  // by any server, as far as it is known
    std::uint64_t live_bytes = 0;       // of the values that a look-up finds
    std::uint64_t longest_ttl_ms = 0;   // of its values; 0: one of them has no limit
    std::vector<std::uint64_t> names;   // hashes, of all values

    bool has_expired(std::int64_t now_unix_ms) const {
      return longest_ttl_ms != 0 &&
             now_unix_ms - last_use_unix_ms >= static_cast<std::int64_t>(longest_ttl_ms);
    }
  };
  using Objects = std::map<std::string, Object, std::less<>>;
  struct Place {
    const std::string* object = nullptr;  // valid until the object is dropped
    std::uint64_t offset = 0;
    std::uint64_t size_bytes = 0;
  };

  explicit ObjectCatalogue(std::uint64_t seed) : seed_(seed) {}

  struct Added {
    std::string name;
    std::uint64_t size_bytes = 0;
    std::int64_t last_use_unix_ms = 0;
  };
  // Adds an object, unless it is there already.
  void add(Added object, std::span<const ObjectEntry> entries);
  bool has_object(std::string_view name) const { return objects_.contains(name); }
  // The object is gone from the bucket.
  void drop(std::string_view object);

  // nullopt also if the value has expired.
  std::optional<Place> find(std::string_view name, std::int64_t now_unix_ms) const;
  // For each name, whether find() returns a place.
  std::vector<bool> has(std::span<const std::string> names, std::int64_t now_unix_ms) const;
  void used(std::string_view object, std::int64_t unix_ms);
  // The value is wrong, or no longer wanted.
  void forget(std::string_view name);

  const Objects& objects() const { return objects_; }
  std::size_t values() const { return places_.size(); }
  std::uint64_t total_bytes() const { return total_bytes_; }
  std::uint64_t live_bytes() const { return live_bytes_; }

 private:
  struct Where {
    Objects::iterator object;
    std::uint64_t offset;
    std::uint64_t size_bytes;
    std::uint64_t ttl_ms;
  };
  using Places = boost::unordered_flat_map<std::uint64_t, Where>;
  std::uint64_t hash_of(std::string_view name) const;
  void erase(Places::iterator place);

  mutable Mutex mutex_;  // held by has(), and by the other thread's changes

  const std::uint64_t seed_;  // names come from clients, who must not choose colliding ones
  Objects objects_;
  // By the hash of the name: a reader checks the value, so a collision is a miss.
  Places places_;
  std::uint64_t total_bytes_ = 0;
  std::uint64_t live_bytes_ = 0;
};

}  // namespace cairn
