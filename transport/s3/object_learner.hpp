#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "base/clock.hpp"
#include "transport/s3/object_catalogue.hpp"
#include "transport/s3/s3_bucket.hpp"

namespace cairn {

// Keeps a catalogue of what all servers have put into a bucket: lists the objects in pages and
// reads the directory of each, then asks for newer ones. Lists all of them once an hour, to notice
// those that others removed. For one thread, which calls act() again and again. Borrows its
// arguments.
class ObjectLearner {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  ObjectLearner(const S3Settings& settings, const Clock& clock, S3Bucket& bucket,
                ObjectCatalogue& catalogue)
      : settings_(settings), clock_(clock), bucket_(bucket), catalogue_(catalogue) {}

  void act();
  // When act() has something to do, unless a request ends before.
  TimePoint next() const {
    return is_listing_ || bucket_.is_paused() ? TimePoint::max() : next_listing_;
  }
  // Every object that was there at the start is known. Thread-safe.
  bool has_listed() const { return has_listed_.load(std::memory_order_acquire); }
  // The servers' files of uses, and their bytes, as of the last listing.
  using Uses = std::map<std::string, std::uint64_t, std::less<>>;
  const Uses& uses() const { return uses_; }
  // Calls that end from now on start nothing.
  void end() { is_ending_ = true; }

 private:
  struct Listed {
    std::string name;
    ObjectName parts;
    std::uint64_t size_bytes;
  };
  void begin_listing(TimePoint now);
  void list_page();
  void listed(const S3Listing::Object& object);
  void end_listing();
  void drop_unseen();
  void note_if_listed();
  void read_directory_of(Listed listed);
  void take_directory(const Listed& listed, std::string_view directory);

  const S3Settings& settings_;
  const Clock& clock_;
  S3Bucket& bucket_;
  ObjectCatalogue& catalogue_;
  bool is_ending_ = false;
  std::atomic<bool> has_listed_ = false;
  bool pages_have_ended_ = false;
  bool is_listing_ = false;
  bool is_full_ = true;              // this listing is of all objects
  std::optional<std::string> page_;  // lists what follows; nullopt: no listing is in progress
  TimePoint next_listing_{};
  TimePoint next_full_listing_{};
  std::int64_t listing_began_unix_ms_ = 0;
  std::int64_t newest_unix_ms_ = 0;
  std::set<std::string, std::less<>> seen_;  // by a full listing
  Uses uses_;
  std::deque<Listed> waiting_;
  std::set<std::string, std::less<>> known_;  // waiting, or being read
  std::size_t reading_ = 0;
  std::set<std::string, std::less<>> damaged_;
};

}  // namespace cairn
