#include "transport/s3/s3_store.hpp"

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <unordered_set>
#include <utility>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "base/pieces.hpp"
#include "base/random.hpp"
#include "base/thread.hpp"
#include "transport/s3/object_catalogue.hpp"
#include "transport/s3/object_learner.hpp"
#include "transport/s3/object_upkeep.hpp"
#include "transport/s3/s3_bucket.hpp"

namespace cairn {
namespace {

using std::chrono::milliseconds;
using SteadyClock = std::chrono::steady_clock;

// Bytes between two values that are read and thrown away, to save a request. A bucket sends them
// within 10 ms.
constexpr std::uint64_t kMaxGapBytes = 1u << 20;
// Of one request. It limits what one failure takes.
constexpr std::uint64_t kMaxRangeBytes = 64ull << 20;
// An object of this size leaves if no value has come for a while: the caller may be waiting for it,
// because a cache pins a limited number of blocks.
constexpr std::uint64_t kWorthwhileBytes = 1u << 20;
constexpr milliseconds kQuiet{50};
// Uploads at a time; the other connections are for reads, for which an engine may wait.
constexpr std::size_t kMaxUploads = 2;
// An upload that fails is tried this often, each time after the pause.
constexpr int kMaxTries = 3;
constexpr milliseconds kLongestPoll{1'000};

struct PendingRead {
  RemoteStore::Read read;
  std::size_t index = 0;  // in the caller's list
  std::shared_ptr<RemoteStore::ReadDone> done;
  SteadyClock::time_point begun;
  std::string object = {};
  std::uint64_t offset = 0;
  std::uint64_t size_bytes = 0;

  std::uint64_t end() const { return offset + size_bytes; }
};

struct PendingWrite {
  RemoteStore::Write write;
  UniqueFunction<void(Result<bool>)> done;
  SteadyClock::time_point begun;
};

// Values that become one object.
struct Pack {
  std::vector<PendingWrite> writes = {};
  std::uint64_t bytes = 0;
  int tries = 0;
  std::string object = {};
  std::vector<ObjectEntry> entries = {};
  std::string directory = {};

  std::uint64_t object_bytes() const { return bytes + directory.size(); }
};
using PackPtr = std::shared_ptr<Pack>;

class S3Store final : public RemoteStore {
 public:
  explicit S3Store(S3Settings settings)
      : settings_(std::move(settings)),
        bucket_(settings_),
        catalogue_(RandomBytes().next_u64()),
        next_number_(RandomBytes().next_u64()),
        thread_("s3-store", [this](const std::stop_token& stop) {
          while (!guarded("s3-store", [&] { run(stop); })) continue;
        }) {}

  ~S3Store() override {
    thread_.request_stop();
    bucket_.session().wake();
    thread_.join();
  }

  Habits habits() const override {
    return {.max_writes = static_cast<std::uint32_t>(settings_.max_queued / 2),
            .step_bytes = settings_.object_bytes,
            .step_values = kMaxObjectValues};
  }

  // On the caller's thread: the store's may be moving and checking megabytes, and a match has 2 ms.
  void probe(Probe probe, UniqueFunction<void(std::vector<Presence>)> done) override {
    const auto begun = SteadyClock::now();
    const Presence unseen = learner_.has_listed() ? Presence::absent : Presence::unknown;
    std::vector<Presence> found;
    for (const bool is_there : catalogue_.has(probe.names, clock_.unix_ms())) {
      found.push_back(is_there ? Presence::present : unseen);
      if (found.back() != Presence::unknown) {
        count(StoreOperation::probe, is_there, {.begun = begun});
      }
    }
    done(std::move(found));
  }

  void read(std::vector<Read> reads, ReadDone done) override {
    post([this, reads = std::move(reads), done = std::make_shared<ReadDone>(std::move(done)),
          begun = SteadyClock::now()]() mutable {
      for (std::size_t i = 0; i < reads.size(); ++i) {
        take_read({.read = std::move(reads[i]), .index = i, .done = done, .begun = begun});
      }
    });
  }

  void write(Write write, UniqueFunction<void(Result<bool>)> done) override {
    post([this, one = PendingWrite{.write = std::move(write),
                                   .done = std::move(done),
                                   .begun = SteadyClock::now()}]() mutable {
      take_write(std::move(one));
    });
  }

  void touch(Touch touch, UniqueFunction<void(Result<bool>)> done) override {
    post([this, touch = std::move(touch), done = std::move(done)]() mutable {
      const auto begun = SteadyClock::now();
      const auto place = catalogue_.find(touch.name, clock_.unix_ms());
      if (place) catalogue_.used(*place->object, clock_.unix_ms());
      count(StoreOperation::touch, place.has_value(), {.begun = begun});
      done(place.has_value());
    });
  }

  void erase(std::string name) override {
    post([this, name = std::move(name)] { catalogue_.forget(name); });
  }

  // No cache has holders here: its configuration is refused.
  void announce(Announce, UniqueFunction<void(std::size_t)> done) override {
    post([done = std::move(done)]() mutable { done(0); });
  }
  void withdraw(Withdraw) override {}
  void find_holders(FindHolders find,
                    UniqueFunction<void(std::vector<std::optional<Holders>>)> done) override {
    post([find = std::move(find), done = std::move(done)]() mutable {
      done(std::vector<std::optional<Holders>>(find.names.size()));
    });
  }

  RemoteStoreStats stats() const override {
    RemoteStoreStats stats;
    {
      MutexLock lock(mutex_);
      stats = stats_;
      stats.by_node = by_node_.snapshot();
    }
    for (std::size_t i = 0; i < kNumStoreOperations; ++i) {
      stats.operations[i].durations = durations_[i].snapshot();
    }
    return stats;
  }

 private:
  using Task = UniqueFunction<void()>;

  void post(Task task) {
    bool was_empty = false;
    {
      MutexLock lock(mutex_);
      was_empty = tasks_.empty();
      tasks_.push_back(std::move(task));
    }
    if (was_empty) bucket_.session().wake();  // a system call
  }

  // --- the thread
  void run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      take_tasks();
      start_reads();
      start_uploads();
      bucket_.keep_keys();
      learner_.act();
      upkeep_.act();
      report();
      bucket_.session().poll(time_to_poll());
    }
    end();
  }

  void take_tasks() {
    std::deque<Task> tasks;
    {
      MutexLock lock(mutex_);
      tasks = std::exchange(tasks_, {});
    }
    for (Task& task : tasks) task();
  }

  void end() {
    take_tasks();
    const Error why{ErrorCode::cancelled, "the server ends"};
    is_ending_ = true;
    learner_.end();
    upkeep_.end();
    bucket_.session().cancel_all(why.detail);
    for (PendingRead& one : std::exchange(reads_, {})) finish(one, why);
    if (filling_) sealed_.push_back(std::exchange(filling_, nullptr));
    for (const PackPtr& pack : std::exchange(sealed_, {})) finish(*pack, why);
  }

  milliseconds time_to_poll() {
    auto next = SteadyClock::now() + kLongestPoll;
    if (filling_) next = std::min(next, filling_ends());
    if (bucket_.is_paused()) next = std::min(next, bucket_.paused_until());
    next = std::min({next, learner_.next(), upkeep_.next()});
    {
      MutexLock lock(mutex_);
      if (!tasks_.empty()) return milliseconds(0);
    }
    const auto left = std::chrono::ceil<milliseconds>(next - SteadyClock::now());
    return std::clamp(left, milliseconds(0), kLongestPoll);
  }

  // --- reads
  void take_read(PendingRead one) {
    const auto place = catalogue_.find(one.read.name, clock_.unix_ms());
    if (!place) return finish(one, false);
    one.object = *place->object;
    one.offset = place->offset;
    one.size_bytes = place->size_bytes;
    if (one.size_bytes == 0 || one.size_bytes > total_bytes(one.read.into)) {
      return finish(one, Error{ErrorCode::wrong_length, "the value is empty or too long"});
    }
    one.read.into = first_bytes(one.read.into, one.size_bytes);
    if (reads_.size() >= settings_.max_queued) {
      return finish(one, Error{ErrorCode::queue_full, "too many reads wait for the bucket"});
    }
    catalogue_.used(*place->object, clock_.unix_ms());
    reads_.push_back(std::move(one));
  }

  void start_reads() {
    if (reads_.empty()) return;
    std::ranges::stable_sort(reads_, {}, [](const PendingRead& one) {
      return std::pair<std::string_view, std::uint64_t>(one.object, one.offset);
    });
    std::size_t begun = 0;
    while (begun < reads_.size() && bucket_.session().in_progress() < settings_.connections) {
      begun += start_range(begun);
    }
    reads_.erase(reads_.begin(), reads_.begin() + static_cast<std::ptrdiff_t>(begun));
  }

  // Starts one request for the reads from `first` on that lie close together. Returns how many.
  std::size_t start_range(std::size_t first) {
    auto range = std::make_shared<std::vector<PendingRead>>();
    S3Bucket::Read read{.object = reads_[first].object, .offset = reads_[first].offset};
    std::uint64_t end = read.offset;
    std::size_t count = 0;
    for (; first + count < reads_.size(); ++count) {
      PendingRead& one = reads_[first + count];
      // Two reads of one value overlap, and get a request each.
      if (one.object != read.object || one.offset < end || one.offset - end > kMaxGapBytes ||
          (count > 0 && one.end() - read.offset > kMaxRangeBytes)) {
        break;
      }
      if (one.offset > end) read.into.push_back({nullptr, one.offset - end});
      read.into.insert(read.into.end(), one.read.into.begin(), one.read.into.end());
      end = one.end();
      range->push_back(std::move(one));
    }
    const std::string object = read.object;
    bucket_.read(std::move(read), [this, range, object](const Result<bool>& there) {
      if (there && !*there) catalogue_.drop(object);
      for (PendingRead& one : *range) finish(one, there);
    });
    return count;
  }

  void finish(PendingRead& one, const Result<bool>& result) {
    count(StoreOperation::read, result,
          {.begun = one.begun, .bytes = result && *result ? one.size_bytes : 0});
    if (!result) return (*one.done)(one.index, result.error());
    if (!*result) return (*one.done)(one.index, std::nullopt);
    (*one.done)(one.index, one.size_bytes);
  }

  // --- writes
  void take_write(PendingWrite one) {
    if (catalogue_.find(one.write.name, clock_.unix_ms()) || coming_.contains(one.write.name)) {
      return finish(one, false);
    }
    if (coming_.size() >= settings_.max_queued || one.write.name.size() > kMaxValueName) {
      return finish(one, Error{ErrorCode::queue_full, "too many values wait for the bucket"});
    }
    const auto now = SteadyClock::now();
    if (!filling_) {
      filling_ = std::make_shared<Pack>();
      linger_ends_ = now + milliseconds(settings_.linger_ms);
    }
    const std::uint64_t bytes = total_bytes(one.write.from);
    filling_->entries.push_back({.name = one.write.name,
                                 .offset = filling_->bytes,
                                 .size_bytes = bytes,
                                 .ttl_ms = one.write.ttl_ms});
    filling_->bytes += bytes;
    last_write_ = now;
    coming_.insert(one.write.name);
    filling_->writes.push_back(std::move(one));
    if (filling_->bytes >= settings_.object_bytes || filling_->entries.size() == kMaxObjectValues) {
      seal();
    }
  }

  SteadyClock::time_point filling_ends() const {
    if (filling_->bytes < kWorthwhileBytes) return linger_ends_;
    return std::min(linger_ends_, last_write_ + kQuiet);
  }

  void seal() {
    Pack& pack = *filling_;
    pack.directory = write_directory(pack.entries);
    pack.object = ObjectName{.created_unix_ms = clock_.unix_ms(),
                             .writer = settings_.writer,
                             .number = next_number_++,
                             .directory_bytes = pack.directory.size()}
                      .text();
    sealed_.push_back(std::exchange(filling_, nullptr));
  }

  void start_uploads() {
    if (filling_ && SteadyClock::now() >= filling_ends()) seal();
    while (!sealed_.empty() && uploads_ < kMaxUploads && !bucket_.is_paused() &&
           bucket_.may(sealed_.front()->object_bytes())) {
      const PackPtr next = std::move(sealed_.front());
      sealed_.pop_front();
      if (upkeep_.make_room(next->object_bytes())) {
        upload(next);
      } else {
        finish(*next, Error{ErrorCode::no_capacity, "the bucket has its capacity_bytes"});
      }
    }
  }

  void upload(const PackPtr& pack) {
    ++uploads_;
    ++pack->tries;
    std::vector<iovec> body;
    for (const PendingWrite& one : pack->writes) {
      body.insert(body.end(), one.write.from.begin(), one.write.from.end());
    }
    body.push_back({pack->directory.data(), pack->directory.size()});
    bucket_.write(pack->object, std::move(body), [this, pack](const Result<>& written) {
      --uploads_;
      if (written) {
        catalogue_.add({.name = pack->object,
                        .size_bytes = pack->object_bytes(),
                        .last_use_unix_ms = clock_.unix_ms()},
                       pack->entries);
        return finish(*pack, true);
      }
      const bool again =
          written.error().code == ErrorCode::unavailable && !is_ending_ && pack->tries < kMaxTries;
      if (!again) return finish(*pack, written.error());
      sealed_.push_front(pack);
    });
  }

  void finish(Pack& pack, const Result<bool>& result) {
    for (PendingWrite& one : pack.writes) {
      coming_.erase(one.write.name);
      finish(one, result);
    }
  }
  void finish(PendingWrite& one, const Result<bool>& result) {
    count(StoreOperation::write, result,
          {.begun = one.begun, .bytes = result && *result ? total_bytes(one.write.from) : 0});
    one.done(result);
  }

  // --- counts
  struct Timed {
    SteadyClock::time_point begun;
    std::uint64_t bytes = 0;
  };
  void count(StoreOperation operation, const Result<bool>& result, const Timed& timed) {
    const auto index = static_cast<std::size_t>(operation);
    const auto now = SteadyClock::now();
    const auto took = std::chrono::duration_cast<std::chrono::microseconds>(now - timed.begun);
    durations_[index].record(static_cast<std::uint64_t>(took.count()));
    MutexLock lock(mutex_);
    RemoteStoreStats::Operation& counts = stats_.operations[index];
    ++counts.outcomes[static_cast<std::size_t>(outcome_of(result))];
    counts.bytes += timed.bytes;
    if (operation == StoreOperation::read || operation == StoreOperation::write) {
      by_node_.record({.node = node_, .operation = operation, .begun = timed.begun, .ended = now});
    }
  }

  RemoteStoreStats::Bucket bucket_stats() const {
    constexpr double kGiB = 1024.0 * 1024 * 1024;
    const S3Bucket::Counts& counts = bucket_.counts();
    const auto sent = [&counts](S3Bucket::Call call) {
      return counts.requests[static_cast<std::size_t>(call)];
    };
    const S3Prices& prices = settings_.prices;
    RemoteStoreStats::Bucket stats{.gets = sent(S3Bucket::Call::get),
                                   .puts = sent(S3Bucket::Call::put),
                                   .lists = sent(S3Bucket::Call::list),
                                   .deletes = sent(S3Bucket::Call::remove),
                                   .over_bounds = counts.over_bounds,
                                   .received_bytes = counts.received_bytes,
                                   .sent_bytes = counts.sent_bytes,
                                   .objects = catalogue_.objects().size(),
                                   .values = catalogue_.values(),
                                   .live_bytes = catalogue_.live_bytes(),
                                   .dead_bytes = catalogue_.total_bytes() - catalogue_.live_bytes(),
                                   .removed_objects = upkeep_.counts().removed_objects,
                                   .rewritten_objects = upkeep_.counts().rewritten_objects};
    stats.requests_cost =
        static_cast<double>(stats.puts + stats.lists) * prices.million_puts / 1e6 +
        static_cast<double>(stats.gets) * prices.million_gets / 1e6 +
        static_cast<double>(stats.received_bytes) / kGiB * prices.gib_received;
    stats.cost_per_month = static_cast<double>(catalogue_.total_bytes()) / kGiB * prices.gib_month;
    return stats;
  }

  void report() {
    MutexLock lock(mutex_);
    stats_.bucket = bucket_stats();
    stats_.is_ready = learner_.has_listed();
    stats_.nodes = {
        {.address = node_, .is_open = bucket_.is_paused(), .last_error = bucket_.last_error()}};
  }

  const S3Settings settings_;
  const std::string node_ = bucket_url(settings_);
  const SystemClock clock_;
  // Only for the thread, but for what is thread-safe:
  S3Bucket bucket_;
  ObjectCatalogue catalogue_;
  bool is_ending_ = false;
  std::vector<PendingRead> reads_;
  PackPtr filling_;  // null: no write since the last object
  SteadyClock::time_point linger_ends_{};
  SteadyClock::time_point last_write_{};
  std::deque<PackPtr> sealed_;
  std::size_t uploads_ = 0;
  std::unordered_set<std::string> coming_;  // names that are being written
  std::uint64_t next_number_;
  ObjectLearner learner_{settings_, clock_, bucket_, catalogue_};
  ObjectUpkeep upkeep_{settings_, clock_, bucket_, catalogue_, learner_};

  std::array<DurationHistogram, kNumStoreOperations> durations_;
  mutable Mutex mutex_;
  std::deque<Task> tasks_ CAIRN_GUARDED_BY(mutex_);
  RemoteStoreStats stats_ CAIRN_GUARDED_BY(mutex_);
  NodeDurations by_node_ CAIRN_GUARDED_BY(mutex_);
  Thread thread_;  // last: it uses all other members
};

}  // namespace

Result<std::unique_ptr<RemoteStore>> make_s3_store(S3Settings settings) {
  CAIRN_TRY(check(settings));
  CAIRN_TRY(check_keys(settings));
  return std::unique_ptr<RemoteStore>(std::make_unique<S3Store>(std::move(settings)));
}

}  // namespace cairn
