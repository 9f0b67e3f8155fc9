#pragma once

#include <boost/unordered/unordered_flat_set.hpp>
#include <cstddef>
#include <cstdint>

namespace cairn {

// The number may change as long as the hash at its place is the same.
struct HashedPlace {
  mutable std::uint32_t number = 0;
};

// Numbers of places, found by a hash that is stored at the place and not here again: 9 bytes each
// instead of 30. `HashAt` returns the hash at a number; the data it reads must outlive this. Not
// thread-safe.
template <class HashAt>
class PlacesByHash {
 public:
  // Reserves room for `max_places`.
  PlacesByHash(std::size_t max_places, HashAt hash_at)
      : places_(max_places, Hash{hash_at}, Equal{hash_at}) {}

  bool contains(std::uint64_t hash) const { return places_.contains(hash); }
  const HashedPlace* find(std::uint64_t hash) const {
    const auto found = places_.find(hash);
    return found == places_.end() ? nullptr : &*found;
  }
  // REQUIRES: the hash is stored at the place, and at no other.
  void insert(std::uint32_t number) { places_.insert(HashedPlace{number}); }
  // REQUIRES: the hash is still stored at its place.
  void erase(std::uint64_t hash) { places_.erase(places_.find(hash)); }
  std::size_t size() const { return places_.size(); }
  std::uint64_t memory_bytes() const { return places_.bucket_count() * (sizeof(HashedPlace) + 1); }

 private:
  struct Hash {
    using is_transparent = void;
    HashAt hash_at;

    std::size_t operator()(std::uint64_t hash) const { return hash; }
    std::size_t operator()(HashedPlace place) const { return hash_at(place.number); }
  };
  struct Equal {
    using is_transparent = void;
    HashAt hash_at;

    bool operator()(std::uint64_t hash, HashedPlace place) const {
      return hash == hash_at(place.number);
    }
    bool operator()(HashedPlace place, std::uint64_t hash) const { return (*this)(hash, place); }
    bool operator()(HashedPlace one, HashedPlace other) const {
      return hash_at(one.number) == hash_at(other.number);
    }
  };
  boost::unordered_flat_set<HashedPlace, Hash, Equal> places_;
};

}  // namespace cairn
