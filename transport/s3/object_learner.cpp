#include "transport/s3/object_learner.hpp"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace cairn {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Directories that are read at a time, and that wait to be read before the next page is listed.
constexpr std::size_t kMaxReading = 4;
constexpr std::size_t kMaxWaiting = 2'000;
// Hosts' clocks differ by at most this much: S3 refuses requests beyond 15 minutes.
constexpr milliseconds kSkew{900'000};
constexpr milliseconds kFullListing{3'600'000};
constexpr milliseconds kPauseAfterFailure{1'000};
// Objects whose directory is damaged, which are not read again.
constexpr std::size_t kMaxDamaged = 4'096;
// Names of files of uses that are remembered: one per server.
constexpr std::size_t kMaxUses = 10'000;

}  // namespace

void ObjectLearner::act() {
  while (reading_ < kMaxReading && !waiting_.empty() && !bucket_.is_paused() &&
         bucket_.may(waiting_.front().parts.directory_bytes)) {
    Listed next = std::move(waiting_.front());
    waiting_.pop_front();
    read_directory_of(std::move(next));
  }
  const auto now = steady_clock::now();
  if (is_listing_ || now < next_listing_ || waiting_.size() > kMaxWaiting || bucket_.is_paused()) {
    return;
  }
  if (!page_) begin_listing(now);
  list_page();
}

void ObjectLearner::begin_listing(TimePoint now) {
  is_full_ = !pages_have_ended_ || now >= next_full_listing_;
  seen_.clear();
  listing_began_unix_ms_ = clock_.unix_ms();
  page_ = is_full_ ? "" : first_name_of(newest_unix_ms_ - kSkew.count());
}

void ObjectLearner::list_page() {
  is_listing_ = true;
  bucket_.list(*page_, [this](const Result<S3Listing>& listing) {
    is_listing_ = false;
    if (!listing) {
      next_listing_ = steady_clock::now() + kPauseAfterFailure;
      return;
    }
    for (const S3Listing::Object& object : listing->objects) listed(object);
    if (listing->is_truncated && !listing->objects.empty()) {
      page_ = listing->objects.back().key;
    } else {
      end_listing();
    }
  });
}

void ObjectLearner::listed(const S3Listing::Object& object) {
  if (object.key.starts_with(kUsesPrefix) && uses_.size() < kMaxUses) {
    uses_.insert_or_assign(object.key, object.size_bytes);
  }
  const auto parts = ObjectName::read(object.key);
  if (!parts || object.size_bytes <= parts->directory_bytes) return;
  newest_unix_ms_ = std::max(newest_unix_ms_, parts->created_unix_ms);
  if (is_full_) seen_.insert(object.key);
  if (catalogue_.has_object(object.key) || damaged_.contains(object.key)) return;
  if (known_.insert(object.key).second) waiting_.push_back({object.key, *parts, object.size_bytes});
}

void ObjectLearner::end_listing() {
  page_.reset();
  const auto now = steady_clock::now();
  next_listing_ = now + milliseconds(settings_.poll_ms);
  if (is_full_) {
    next_full_listing_ = now + kFullListing;
    drop_unseen();
  }
  pages_have_ended_ = true;
  note_if_listed();
}

void ObjectLearner::drop_unseen() {
  std::vector<std::string> gone;
  // A younger one may have been added since its page was listed.
  const std::string first_young = first_name_of(listing_began_unix_ms_ - kSkew.count());
  for (const auto& [name, object] : catalogue_.objects()) {
    if (name >= first_young) break;
    if (!seen_.contains(name)) gone.push_back(name);
  }
  for (const std::string& name : gone) catalogue_.drop(name);
  seen_.clear();
}

void ObjectLearner::note_if_listed() {
  if (pages_have_ended_ && waiting_.empty() && reading_ == 0) {
    has_listed_.store(true, std::memory_order_release);
  }
}

void ObjectLearner::read_directory_of(Listed listed) {
  struct Reading {
    Listed listed;
    std::string directory;
  };
  ++reading_;
  const auto reading = std::make_shared<Reading>(Reading{std::move(listed), {}});
  reading->directory.resize(reading->listed.parts.directory_bytes);
  S3Bucket::Read read{.object = reading->listed.name,
                      .offset = reading->listed.size_bytes - reading->directory.size(),
                      .into = {{reading->directory.data(), reading->directory.size()}}};
  bucket_.read(std::move(read), [this, reading](const Result<bool>& there) {
    --reading_;
    if (!there && there.error().code != ErrorCode::wrong_length && !is_ending_) {
      waiting_.push_back(reading->listed);
      return;
    }
    known_.erase(reading->listed.name);
    if (there && *there) take_directory(reading->listed, reading->directory);
    note_if_listed();
  });
}

void ObjectLearner::take_directory(const Listed& listed, std::string_view directory) {
  const auto entries = read_directory(directory);
  const bool is_whole =
      entries &&
      entries->back().offset + entries->back().size_bytes + directory.size() == listed.size_bytes;
  if (!is_whole) {
    if (damaged_.size() < kMaxDamaged) damaged_.insert(listed.name);
    return;
  }
  catalogue_.add({.name = listed.name,
                  .size_bytes = listed.size_bytes,
                  .last_use_unix_ms = listed.parts.created_unix_ms},
                 *entries);
}

}  // namespace cairn
