#include "transport/lane_crew.hpp"

#include <algorithm>
#include <string>

namespace cairn {

LaneCrew::LaneCrew(DeviceRuntime& runtime, DeviceScratch* scratch, std::uint32_t helpers)
    : runtime_(runtime), scratch_(scratch) {
  try {
    for (std::uint32_t i = 0; i < helpers; ++i) {
      helpers_.emplace_back("disk " + std::to_string(i),
                            [this](const std::stop_token&) { help(); });
    }
  } catch (...) {
    stop();
    throw;
  }
}

LaneCrew::~LaneCrew() { stop(); }

void LaneCrew::stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  helpers_.clear();
}

void LaneCrew::for_each(std::size_t count, Lane& own_lane, const Part& part) {
  // Nothing to share: no lock, no wake-up.
  if (count <= 1 || helpers_.empty()) {
    for (std::size_t i = 0; i < count; ++i) part(i, own_lane);
    return;
  }
  Round round{.part = part, .count = count};
  MutexLock lock(mutex_);
  open_.push_back(&round);
  work_.notify_all();
  while (round.next < round.count) run_next(round, own_lane);
  while (round.running > 0) ended_.wait(mutex_);
  if (round.thrown) std::rethrow_exception(round.thrown);
}

void LaneCrew::help() {
  Lane lane(runtime_, scratch_);
  MutexLock lock(mutex_);
  while (true) {
    while (open_.empty() && !stopping_) work_.wait(mutex_);
    if (open_.empty()) return;
    run_next(*open_.front(), lane);
  }
}

void LaneCrew::run_next(Round& round, Lane& lane) {
  const std::size_t index = round.next++;
  ++round.running;
  if (round.next == round.count) std::erase(open_, &round);
  mutex_.unlock();
  std::exception_ptr thrown;
  try {
    round.part(index, lane);
  } catch (...) {
    thrown = std::current_exception();
  }
  mutex_.lock();
  if (thrown) round.thrown = thrown;
  // The last touch of the round: its owner may be gone once the count is zero and the lock is free.
  if (--round.running == 0) ended_.notify_all();
}

}  // namespace cairn
