#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "transport/store/shared_store.hpp"

namespace cairn::testing {

// A store in memory that answers at once, for as long as it is told to.
class MemoryStore final : public SharedStore {
 public:
  void probe(Probe probe, UniqueFunction<void(std::vector<Presence>)> done) override {
    ++probes;
    std::vector<Presence> there;
    for (const std::string& name : probe.names) {
      there.push_back(is_down              ? Presence::unknown
                      : values.count(name) ? Presence::present
                                           : Presence::absent);
    }
    done(std::move(there));
  }
  void read(Read read, UniqueFunction<void(Result<bool>)> done) override {
    if (is_down) return done(down());
    const auto at = values.find(read.name);
    if (at == values.end()) return done(false);
    std::size_t size = 0;
    for (const iovec& piece : read.into) size += piece.iov_len;
    if (size != at->second.size()) return done(Error{ErrorCode::wrong_length, "another length"});
    const char* from = at->second.data();
    for (const iovec& piece : read.into) {
      std::memcpy(piece.iov_base, from, piece.iov_len);
      from += piece.iov_len;
    }
    done(true);
  }
  void write(Write write, UniqueFunction<void(Result<bool>)> done) override {
    if (is_down) return done(down());
    std::string bytes;
    for (const iovec& piece : write.from) {
      bytes.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
    }
    done(values.emplace(write.name, std::move(bytes)).second);
  }
  void touch(Touch touch, UniqueFunction<void(Result<bool>)> done) override {
    if (is_down) return done(down());
    ++touches;
    done(values.count(touch.name) > 0);
  }
  void erase(std::string name) override { values.erase(name); }
  SharedStoreStats stats() const override { return {}; }

  std::map<std::string, std::string> values;
  bool is_down = false;
  int probes = 0;
  int touches = 0;

 private:
  static Error down() { return {ErrorCode::unavailable, "the store is down"}; }
};

}  // namespace cairn::testing
