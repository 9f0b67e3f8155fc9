#pragma once

#include <map>
#include <string>

#include "tests/simulation/simulation_oracle.hpp"
#include "transport/store/remote_store.hpp"

namespace cairn::sim {

// A store that servers share. Its calls take time: a write takes the first half of its bytes at
// once and the rest at its end, and a read delivers its bytes in the same way.
class Store final : public RemoteStore {
 public:
  // By name. They outlive the runs of the server.
  using Values = std::map<std::string, testing::Bytes>;
  // Each happens once in this number of calls; 0: never.
  struct Faults {
    std::uint64_t fails_once_in = 0;  // also after a write whose reply is lost
    std::uint64_t flips_once_in = 0;  // a read delivers a wrong bit
    std::uint64_t loses_once_in = 0;  // the value is gone, or is shorter

    bool any() const { return fails_once_in + flips_once_in + loses_once_in > 0; }
  };
  // The key of each name that a cache may use.
  using Names = std::map<std::string, KeyNumber>;
  struct Parts {
    Queue& queue;
    Oracle& oracle;
    Values& values;
    Names names;
    Faults faults;
    bool is_far = false;  // the second of two, of which clients hear nothing
  };
  explicit Store(Parts parts) : parts_(std::move(parts)) {}

  void probe(Probe probe, UniqueFunction<void(std::vector<Presence>)> done) override;
  void read(std::vector<Read> reads, ReadDone done) override;
  void write(Write write, UniqueFunction<void(Result<bool>)> done) override;
  void touch(Touch touch, UniqueFunction<void(Result<bool>)> done) override;
  void erase(std::string name) override;
  RemoteStoreStats stats() const override { return {}; }

  // The simulated caches have placement `values`.
  void announce(Announce, UniqueFunction<void(std::size_t)> done) override { done(0); }
  void withdraw(Withdraw) override {}
  void find_holders(FindHolders find,
                    UniqueFunction<void(std::vector<std::optional<Holders>>)> done) override {
    done(std::vector<std::optional<Holders>>(find.names.size()));
  }

 private:
  bool happens(std::uint64_t once_in) { return once_in != 0 && random().once_in(once_in); }
  Random& random() { return parts_.queue.random(); }
  void lose_some(const std::string& name);
  void read_one(Read read, UniqueFunction<void(ReadResult)> done);

  Parts parts_;
};

}  // namespace cairn::sim
