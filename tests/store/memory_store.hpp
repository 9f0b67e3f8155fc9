#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/pieces.hpp"
#include "transport/store/remote_store.hpp"

namespace cairn::testing {

// A store in memory that answers at once unless told to hold calls. Its calls are thread-safe; a
// test may read its members while no call is under way.
class MemoryStore final : public RemoteStore {
 public:
  void probe(Probe probe, UniqueFunction<void(std::vector<Presence>)> done) override {
    std::vector<Presence> there;
    {
      const std::lock_guard lock(mutex_);
      ++probes;
      asked_within.push_back(probe.within);
      const bool failed = fails();
      for (const std::string& name : probe.names) {
        const bool is_late = there.size() >= known_in_time;
        there.push_back(failed || is_late    ? Presence::unknown
                        : values.count(name) ? Presence::present
                                             : Presence::absent);
      }
    }
    if (before_answer) before_answer();
    done(std::move(there));
  }
  void read(std::vector<Read> reads, ReadDone done) override {
    auto shared = std::make_shared<ReadDone>(std::move(done));
    for (std::size_t i = 0; i < reads.size(); ++i) {
      UniqueFunction<void()> act = [this, i, read = std::move(reads[i]), shared]() mutable {
        (*shared)(i, read_now(read));
      };
      {
        const std::lock_guard lock(mutex_);
        if (holds_reads) {
          held.push_back(std::move(act));
          continue;
        }
      }
      act();
    }
  }
  void write(Write write, UniqueFunction<void(Result<bool>)> done) override {
    std::string bytes;
    for (const iovec& piece : write.from) {
      bytes.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
    }
    std::optional<Result<bool>> ended;
    {
      const std::lock_guard lock(mutex_);
      if (fails()) {
        ended = down();
      } else if (!holds_writes) {
        ended = values.emplace(write.name, std::move(bytes)).second;
      } else {
        held.emplace_back(
            [this, name = write.name, late = std::move(bytes), done = std::move(done)]() mutable {
              bool is_new = false;
              {
                const std::lock_guard inner(mutex_);
                is_new = values.emplace(name, std::move(late)).second;
              }
              done(is_new);
            });
      }
    }
    if (ended) done(std::move(*ended));
  }
  void touch(Touch touch, UniqueFunction<void(Result<bool>)> done) override {
    std::optional<Result<bool>> answer;
    {
      const std::lock_guard lock(mutex_);
      if (fails()) {
        answer = down();
      } else {
        ++touches;
        answer = values.count(touch.name) > 0;
      }
    }
    done(std::move(*answer));
  }
  void erase(std::string name) override {
    const std::lock_guard lock(mutex_);
    values.erase(name);
  }
  void announce(Announce announce, UniqueFunction<void(std::size_t)> done) override {
    std::size_t accepted = 0;
    {
      const std::lock_guard lock(mutex_);
      if (!fails()) {
        for (const auto& block : announce.blocks) holders[block.name][announce.who] = block.mark;
        accepted = announce.blocks.size();
        announced += accepted;
      }
    }
    done(accepted);
  }
  void withdraw(Withdraw withdraw) override {
    const std::lock_guard lock(mutex_);
    if (fails()) return;
    for (const std::string& name : withdraw.names) {
      holders[name].erase(withdraw.who);
      if (holders[name].empty()) holders.erase(name);
    }
  }
  void find_holders(FindHolders find,
                    UniqueFunction<void(std::vector<std::optional<Holders>>)> done) override {
    std::vector<std::optional<Holders>> found(find.names.size());
    {
      const std::lock_guard lock(mutex_);
      ++probes;
      const bool failed = fails();
      for (std::size_t i = 0; i < std::min(found.size(), known_in_time) && !failed; ++i) {
        found[i].emplace();
        const auto at = holders.find(find.names[i]);
        if (at == holders.end()) continue;
        for (const auto& [who, mark] : at->second) found[i]->push_back({.who = who, .mark = mark});
      }
    }
    done(std::move(found));
  }
  RemoteStoreStats stats() const override { return {}; }

  // Runs the held calls.
  void let_go() {
    std::vector<UniqueFunction<void()>> going;
    {
      const std::lock_guard lock(mutex_);
      going.swap(held);
    }
    for (auto& act : going) act();
  }

  std::map<std::string, std::string> values;
  std::map<std::string, std::map<std::string, std::uint8_t>> holders;  // by name, then by holder
  std::uint64_t announced = 0;
  bool holds_writes = false;
  bool holds_reads = false;
  std::vector<UniqueFunction<void()>> held;
  bool is_down = false;
  std::size_t known_in_time = SIZE_MAX;  // a probe knows only the first ones in time
  int calls = 0;
  int failing_call = 0;  // counted from 1; 0: none
  int probes = 0;
  std::vector<std::chrono::microseconds> asked_within;  // of each probe
  std::function<void()> before_answer;                  // to a probe
  int touches = 0;

 private:
  ReadResult read_now(const Read& read) {
    const std::lock_guard lock(mutex_);
    if (fails()) return down();
    const auto at = values.find(read.name);
    if (at == values.end()) return std::nullopt;
    const std::size_t size = at->second.size();
    if (size == 0 || size > total_bytes(read.into)) {
      return Error{ErrorCode::wrong_length, "empty or too long"};
    }
    const char* from = at->second.data();
    for (const iovec& piece : first_bytes(read.into, size)) {
      std::memcpy(piece.iov_base, from, piece.iov_len);
      from += piece.iov_len;
    }
    return std::optional<std::uint64_t>(size);
  }

  bool fails() { return ++calls == failing_call || is_down; }
  static Error down() { return {ErrorCode::unavailable, "the store is down"}; }

  std::mutex mutex_;  // several threads of the scheduler may store at once
};

}  // namespace cairn::testing
