#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "transport/s3/object_catalogue.hpp"
#include "transport/s3/object_learner.hpp"
#include "transport/s3/s3_bucket.hpp"

namespace cairn {

// Keeps a bucket within its capacity, and its objects full. For one thread, which calls act() again
// and again. Borrows its arguments.
//
// Any server may remove any object, because the writer may be gone. Servers tell one another every
// few minutes which objects they used, so all of them choose the same ones: those that nobody has
// used for longest. An object that was made or used within the last quarter of an hour stays,
// because others may not have heard of it yet.
class ObjectUpkeep {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  struct Counts {
    std::uint64_t removed_objects = 0;
    std::uint64_t rewritten_objects = 0;
  };

  ObjectUpkeep(const S3Settings& settings, const Clock& clock, S3Bucket& bucket,
               ObjectCatalogue& catalogue, const ObjectLearner& learner)
      : settings_(settings),
        clock_(clock),
        bucket_(bucket),
        catalogue_(catalogue),
        learner_(learner) {}

  void act();
  // When act() has something to do, unless a request ends before.
  TimePoint next() const {
    return learner_.has_listed() && !bucket_.is_paused() ? next_look_ : TimePoint::max();
  }
  // Removes what may go, so that an object of this size fits. False: it does not.
  bool make_room(std::uint64_t bytes);
  const Counts& counts() const { return counts_; }
  // Calls that end from now on start nothing.
  void end() { is_ending_ = true; }

 private:
  void remove_soon(std::string object, TimePoint not_before = {});
  void remove_expired();
  void remove_next();
  void exchange_uses();
  void read_next_uses();
  void take_uses(std::string_view bytes);
  void rewrite_one();
  struct Rewriting;
  void rewrite(const std::shared_ptr<Rewriting>& rewriting);
  std::int64_t first_young() const;

  const S3Settings& settings_;
  const Clock& clock_;
  S3Bucket& bucket_;
  ObjectCatalogue& catalogue_;
  const ObjectLearner& learner_;
  bool is_ending_ = false;
  TimePoint next_look_{};
  TimePoint next_exchange_{};
  struct Doomed {
    std::string object;
    TimePoint not_before;
  };
  std::deque<Doomed> doomed_;
  std::size_t removing_ = 0;
  std::deque<std::pair<std::string, std::uint64_t>> uses_to_read_;  // names and bytes
  bool is_reading_uses_ = false;
  bool has_exchanged_ = false;  // nothing is removed before the others' uses are known
  bool is_rewriting_ = false;
  Counts counts_;
};

}  // namespace cairn
