#include "transport/s3/object_upkeep.hpp"

#include <algorithm>
#include <utility>

#include "base/pieces.hpp"
#include "base/random.hpp"

namespace cairn {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// An object that was made or used within this time stays: the other servers may not know of it yet.
constexpr milliseconds kGrace{900'000};
constexpr milliseconds kExchange{300'000};
constexpr std::uint32_t kMaxLookMs = 1'000;
constexpr std::size_t kMaxRemoving = 2;
// Of the capacity that one call of make_room() frees, so that not each upload looks for victims.
constexpr std::uint64_t kShareFreed = 16;

}  // namespace

std::int64_t ObjectUpkeep::first_young() const { return clock_.unix_ms() - kGrace.count(); }

void ObjectUpkeep::act() {
  if (bucket_.is_paused()) return;
  remove_next();
  read_next_uses();
  const auto now = steady_clock::now();
  if (!learner_.has_listed() || now < next_look_) return;
  next_look_ = now + milliseconds(std::min(settings_.poll_ms, kMaxLookMs));
  if (now >= next_exchange_) {
    next_exchange_ = now + kExchange;
    exchange_uses();
  }
  has_exchanged_ |= uses_to_read_.empty() && !is_reading_uses_;
  if (!has_exchanged_) return;
  remove_expired();
  static_cast<void>(make_room(0));
  rewrite_one();
}

// --- removal
void ObjectUpkeep::remove_soon(std::string object, TimePoint not_before) {
  catalogue_.drop(object);
  doomed_.push_back({std::move(object), not_before});
}

void ObjectUpkeep::remove_next() {
  const auto now = steady_clock::now();
  while (removing_ < kMaxRemoving && bucket_.may(0)) {
    const auto next =
        std::ranges::find_if(doomed_, [now](const Doomed& one) { return one.not_before <= now; });
    if (next == doomed_.end()) return;
    Doomed one = std::move(*next);
    doomed_.erase(next);
    ++removing_;
    bucket_.remove(one.object, [this, one](const Result<>& removed) {
      --removing_;
      if (removed) {
        ++counts_.removed_objects;
      } else if (!is_ending_) {
        doomed_.push_back(one);
      }
    });
  }
}

void ObjectUpkeep::remove_expired() {
  std::vector<std::string> expired;
  const std::int64_t before = first_young();
  for (const auto& [name, object] : catalogue_.objects()) {
    if (object.has_expired(before)) expired.push_back(name);
  }
  for (std::string& name : expired) remove_soon(std::move(name));
}

bool ObjectUpkeep::make_room(std::uint64_t bytes) {
  const std::uint64_t capacity = settings_.bounds.capacity_bytes;
  if (capacity == 0 || catalogue_.total_bytes() + bytes <= capacity) return true;
  if (!has_exchanged_) return false;
  const std::int64_t before = first_young();
  std::vector<std::pair<std::int64_t, std::string>> old;
  for (const auto& [name, object] : catalogue_.objects()) {
    if (object.last_use_unix_ms <= before) old.emplace_back(object.last_use_unix_ms, name);
  }
  std::ranges::sort(old);
  const std::uint64_t wanted = capacity - capacity / kShareFreed;
  for (auto& [last_use, name] : old) {
    if (catalogue_.total_bytes() + bytes <= wanted) break;
    remove_soon(std::move(name));
  }
  return catalogue_.total_bytes() + bytes <= capacity;
}

// --- what other servers use
void ObjectUpkeep::exchange_uses() {
  std::vector<ObjectUse> uses;
  for (const auto& [name, object] : catalogue_.objects()) {
    uses.push_back({.object = object_hash(name), .last_use_unix_ms = object.last_use_unix_ms});
  }
  if (uses.size() > kMaxUsesOfServer) {
    std::ranges::nth_element(uses, uses.begin() + kMaxUsesOfServer, std::ranges::greater(),
                             &ObjectUse::last_use_unix_ms);
    uses.resize(kMaxUsesOfServer);
  }
  const std::string own = std::string(kUsesPrefix) + settings_.writer;
  if (!uses.empty()) {
    const auto bytes = std::make_shared<std::string>(write_uses(uses));
    bucket_.write(own, {{bytes->data(), bytes->size()}}, [bytes](const Result<>&) {});
  }
  uses_to_read_.clear();
  for (const auto& [name, size_bytes] : learner_.uses()) {
    if (name != own) uses_to_read_.emplace_back(name, size_bytes);
  }
}

void ObjectUpkeep::read_next_uses() {
  if (is_reading_uses_ || uses_to_read_.empty() || is_ending_) return;
  const auto [name, size_bytes] = uses_to_read_.front();
  if (!bucket_.may(size_bytes)) return;
  uses_to_read_.pop_front();
  if (size_bytes == 0 || size_bytes > 2 * kMaxUsesOfServer * sizeof(ObjectUse)) return;
  is_reading_uses_ = true;
  const auto bytes = std::make_shared<std::string>(size_bytes, '\0');
  bucket_.read({.object = name, .offset = 0, .into = {{bytes->data(), bytes->size()}}},
               [this, bytes](const Result<bool>& there) {
                 is_reading_uses_ = false;
                 // A file of another length has been replaced; the next exchange reads it.
                 if (there && *there) take_uses(*bytes);
                 read_next_uses();
               });
}

void ObjectUpkeep::take_uses(std::string_view bytes) {
  auto uses = read_uses(bytes);
  if (!uses) return;
  std::ranges::sort(*uses, {}, &ObjectUse::object);
  const std::int64_t now = clock_.unix_ms();
  for (const auto& [name, object] : catalogue_.objects()) {
    const std::uint64_t hash = object_hash(name);
    const auto at = std::ranges::lower_bound(*uses, hash, {}, &ObjectUse::object);
    if (at == uses->end() || at->object != hash) continue;
    // Another clock may be wrong, or lie.
    catalogue_.used(name, std::min(at->last_use_unix_ms, now));
  }
}

// --- rewriting
struct ObjectUpkeep::Rewriting {
  std::string old_name;
  std::string bytes;  // of the old object
  std::uint64_t directory_bytes = 0;
  std::vector<ObjectEntry> entries = {};  // of the new one
  std::string directory = {};
  std::string name = {};
};

// An object of which less than half is of use is replaced by one that has only that.
void ObjectUpkeep::rewrite_one() {
  if (is_rewriting_ || is_ending_) return;
  const std::string before = first_name_of(first_young());
  for (const auto& [name, object] : catalogue_.objects()) {
    if (name >= before) return;
    const auto parts = ObjectName::read(name);
    const std::uint64_t value_bytes = object.size_bytes - parts->directory_bytes;
    if (object.live_bytes * 2 >= value_bytes || parts->writer != settings_.writer) continue;
    if (object.live_bytes == 0) return remove_soon(name);
    if (!bucket_.may(object.size_bytes)) return;
    is_rewriting_ = true;
    const auto rewriting =
        std::make_shared<Rewriting>(Rewriting{.old_name = name,
                                              .bytes = std::string(object.size_bytes, '\0'),
                                              .directory_bytes = parts->directory_bytes});
    return bucket_.read(
        {.object = name, .offset = 0, .into = {{rewriting->bytes.data(), rewriting->bytes.size()}}},
        [this, rewriting](const Result<bool>& there) {
          is_rewriting_ = false;
          if (there && !*there) catalogue_.drop(rewriting->old_name);
          if (there && *there && !is_ending_) rewrite(rewriting);
        });
  }
}

void ObjectUpkeep::rewrite(const std::shared_ptr<Rewriting>& rewriting) {
  Rewriting& one = *rewriting;
  const auto old =
      read_directory(std::string_view(one.bytes).substr(one.bytes.size() - one.directory_bytes));
  if (!old) return catalogue_.drop(one.old_name);
  std::vector<iovec> body;
  std::uint64_t end = 0;
  for (const ObjectEntry& entry : *old) {
    const auto place = catalogue_.find(entry.name, clock_.unix_ms());
    const bool is_live = place && *place->object == one.old_name && place->offset == entry.offset;
    if (!is_live || entry.offset + entry.size_bytes > one.bytes.size()) continue;
    one.entries.push_back(entry);
    one.entries.back().offset = end;
    end += entry.size_bytes;
    body.push_back({one.bytes.data() + entry.offset, entry.size_bytes});
  }
  if (one.entries.empty()) return remove_soon(one.old_name);
  one.directory = write_directory(one.entries);
  body.push_back({one.directory.data(), one.directory.size()});
  one.name = ObjectName{.created_unix_ms = clock_.unix_ms(),
                        .writer = settings_.writer,
                        .number = RandomBytes().next_u64(),
                        .directory_bytes = one.directory.size()}
                 .text();
  is_rewriting_ = true;
  bucket_.write(one.name, std::move(body), [this, rewriting](const Result<>& written) {
    is_rewriting_ = false;
    if (!written) return;
    const auto& objects = catalogue_.objects();
    const auto old_object = objects.find(rewriting->old_name);
    const std::int64_t last_use =
        old_object == objects.end() ? clock_.unix_ms() : old_object->second.last_use_unix_ms;
    // Until the others have learnt of the new object, they read the old one.
    remove_soon(rewriting->old_name, steady_clock::now() + kGrace);
    std::uint64_t bytes = rewriting->directory.size();
    for (const ObjectEntry& entry : rewriting->entries) bytes += entry.size_bytes;
    catalogue_.add({.name = rewriting->name, .size_bytes = bytes, .last_use_unix_ms = last_use},
                   rewriting->entries);
    ++counts_.rewritten_objects;
  });
}

}  // namespace cairn
