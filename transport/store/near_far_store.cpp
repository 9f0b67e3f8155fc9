#include "transport/store/near_far_store.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/mutex.hpp"

namespace cairn {
namespace {

using Presence = RemoteStore::Presence;

Presence of_both(Presence near, Presence far) {
  if (near == Presence::present) return near;
  if (is_there(far)) return Presence::far;
  return near == Presence::unknown || far == Presence::unknown ? Presence::unknown
                                                               : Presence::absent;
}

// The answers of both stores to one probe.
class BothProbes {
 public:
  explicit BothProbes(UniqueFunction<void(std::vector<Presence>)> done) : done_(std::move(done)) {}

  void answer(std::vector<Presence> there, bool is_far) {
    {
      MutexLock lock(mutex_);
      (is_far ? far_ : near_).emplace(std::move(there));
      if (!near_ || !far_) return;
      std::ranges::transform(*near_, *far_, near_->begin(), of_both);
    }
    done_(std::move(*near_));
  }

 private:
  UniqueFunction<void(std::vector<Presence>)> done_;
  Mutex mutex_;
  std::optional<std::vector<Presence>> near_;
  std::optional<std::vector<Presence>> far_;
};

// Reads of the near store, then of the far one.
class BothReads : public std::enable_shared_from_this<BothReads> {
 public:
  BothReads(std::vector<RemoteStore::Read> reads, RemoteStore::ReadDone done)
      : reads_(std::move(reads)), left_(reads_.size()), done_(std::move(done)) {}

  void start(RemoteStore& near, RemoteStore& far) {
    near.read(reads_,
              [self = shared_from_this(), &far](std::size_t index, RemoteStore::ReadResult result) {
                self->near_answered(index, std::move(result), far);
              });
  }

 private:
  struct Missed {
    std::size_t index = 0;
    RemoteStore::ReadResult near;  // without a value
  };

  void near_answered(std::size_t index, RemoteStore::ReadResult result, RemoteStore& far) {
    // An invalid value is the caller's to erase.
    const bool is_answer =
        result ? result->has_value() : result.error().code == ErrorCode::wrong_length;
    bool is_last = false;
    {
      MutexLock lock(mutex_);
      if (!is_answer) missed_.push_back({index, result});
      is_last = --left_ == 0;
    }
    if (is_answer) done_(index, std::move(result));
    if (is_last) read_far(far);
  }

  // No other thread changes `missed_` any more.
  void read_far(RemoteStore& far) {
    std::vector<RemoteStore::Read> reads;
    for (const Missed& one : missed_) reads.push_back(std::move(reads_[one.index]));
    if (reads.empty()) return;
    far.read(std::move(reads),
             [self = shared_from_this()](std::size_t at, RemoteStore::ReadResult result) {
               const Missed& missed = self->missed_[at];
               const bool is_absent = result && !*result;
               self->done_(missed.index, is_absent ? missed.near : std::move(result));
             });
  }

  std::vector<RemoteStore::Read> reads_;
  Mutex mutex_;
  std::size_t left_ CAIRN_GUARDED_BY(mutex_);
  std::vector<Missed> missed_;
  RemoteStore::ReadDone done_;
};

class NearFarStore final : public RemoteStore {
 public:
  NearFarStore(RemoteStore& near, RemoteStore& far) : near_(near), far_(far) {}

  Habits habits() const override {
    Habits both = near_.habits();
    const Habits far = far_.habits();
    both.step_bytes = std::max(both.step_bytes, far.step_bytes);
    both.step_values = std::max(both.step_values, far.step_values);
    return both;
  }
  void probe(Probe probe, UniqueFunction<void(std::vector<Presence>)> done) override {
    const auto both = std::make_shared<BothProbes>(std::move(done));
    far_.probe(probe,
               [both](std::vector<Presence> there) { both->answer(std::move(there), true); });
    near_.probe(std::move(probe),
                [both](std::vector<Presence> there) { both->answer(std::move(there), false); });
  }
  void read(std::vector<Read> reads, ReadDone done) override {
    std::make_shared<BothReads>(std::move(reads), std::move(done))->start(near_, far_);
  }
  void write(Write write, UniqueFunction<void(Result<bool>)> done) override {
    near_.write(std::move(write), std::move(done));
  }
  void touch(Touch touch, UniqueFunction<void(Result<bool>)> done) override {
    near_.touch(std::move(touch), std::move(done));
  }
  void erase(std::string name) override {
    far_.erase(name);
    near_.erase(std::move(name));
  }
  void announce(Announce announce, UniqueFunction<void(std::size_t)> done) override {
    near_.announce(std::move(announce), std::move(done));
  }
  void withdraw(Withdraw withdraw) override { near_.withdraw(std::move(withdraw)); }
  void find_holders(FindHolders find,
                    UniqueFunction<void(std::vector<std::optional<Holders>>)> done) override {
    near_.find_holders(std::move(find), std::move(done));
  }
  RemoteStoreStats stats() const override { return near_.stats(); }

 private:
  RemoteStore& near_;
  RemoteStore& far_;
};

}  // namespace

std::unique_ptr<RemoteStore> make_near_far_store(RemoteStore& near, RemoteStore& far) {
  return std::make_unique<NearFarStore>(near, far);
}

}  // namespace cairn
