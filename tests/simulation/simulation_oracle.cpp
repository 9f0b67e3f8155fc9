#include "tests/simulation/simulation_oracle.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace cairn::sim {
Oracle::Oracle(Finding& finding, Shape shape, bool tell)
    : finding_(finding), shape_(shape), tell_(tell) {
  for (KeyNumber key = 0; key < keys(); ++key) {
    // Keys of every allowed length.
    const KeyNumber number = key % keys_of_group();
    const BlockKey name = testing::key(number, 8 + number % 57);
    names_.push_back(BlockKey(name.view().in(group(key))));
    numbers_.emplace(names_.back(), key);
    const std::uint64_t size_bytes = shape.block_bytes[group(key)];
    // Bytes of a key that no group has, so that groups differ.
    bytes_.push_back(is_zeros(key) ? testing::Bytes(size_bytes)
                                   : testing::bytes_of(testing::key(key, 9), size_bytes));
    // A codec shrinks these; the others are noise.
    constexpr std::ptrdiff_t kNoise = 16;
    if (key % 2 == 0 && std::ssize(bytes_.back()) > kNoise) {
      std::fill(bytes_.back().begin() + kNoise, bytes_.back().end(), bytes_.back()[0]);
    }
  }
  where_.resize(keys());
  ends_.resize(keys());
}

std::optional<std::uint64_t> Oracle::ttl_ms(KeyNumber key) {
  if (key % 13 != 5) return std::nullopt;
  return 5 + key * 20;
}

void Oracle::committed(KeyNumber key, TimePoint asked_at) {
  if (const auto ttl = ttl_ms(key)) ends_[key] = asked_at + std::chrono::milliseconds(*ttl);
}

bool Oracle::must_be_found(KeyNumber key, TimePoint now) const {
  // The disk tier stores times of expiry in whole milliseconds.
  constexpr std::chrono::milliseconds kRounding{2};
  return present(key) && (!ttl_ms(key) || now + kRounding < ends_[key]);
}

KeyNumber Oracle::number(const BlockKey& name) const { return numbers_.at(name); }

std::optional<KeyNumber> Oracle::parent(KeyNumber key) const {
  if (key % shape_.length == 0) return std::nullopt;
  return key - 1;
}

std::vector<KeyNumber> Oracle::children(KeyNumber key) const {
  std::vector<KeyNumber> all;
  if (group(key) > 0) return all;
  if ((key + 1) % shape_.length != 0) all.push_back(key + 1);
  for (KvGroupNumber other = 1; other < groups(); ++other) all.push_back(in_group(key, other));
  return all;
}

std::optional<KeyNumber> Oracle::needed_by(KeyNumber key) const {
  return group(key) > 0 ? std::optional(in_group(key, 0)) : parent(key);
}

std::string Oracle::text(KeyNumber key) const {
  const KeyNumber number = key % keys_of_group();
  const std::string of_group = groups() > 1 ? " of group " + std::to_string(group(key)) : "";
  return "key " + std::to_string(number / shape_.length) + "." +
         std::to_string(number % shape_.length) + of_group;
}

void Oracle::check(KeyNumber key, std::span<const iovec> found, const char* where) {
  const testing::Bytes& expected = bytes_[key];
  std::size_t at = 0;
  for (const iovec& part : found) {
    if (at + part.iov_len > expected.size() ||
        std::memcmp(part.iov_base, expected.data() + at, part.iov_len) != 0) {
      return finding_.report(text(key) + " has another key's bytes: " + where);
    }
    at += part.iov_len;
  }
  if (at != expected.size()) finding_.report(text(key) + " has another length: " + where);
}

void Oracle::begin_life(const EventRing& ring, std::uint64_t next_event, bool faulty) {
  ring_ = &ring;
  next_event_ = next_event;
  faulty_ = faulty;
  was_killed_ = false;
  where_.assign(keys(), {});
  becoming_durable_.reset();
  promised_.clear();
  erased_.clear();
  committing_.clear();
  to_be_stored_.clear();
  left_too_early_.clear();
}

void Oracle::look() {
  if (ring_ == nullptr) return;
  std::array<BlockEvent, 64> events;
  while (true) {
    const EventRing::Read read = ring_->read(next_event_, events);
    if (next_event_ != 0 && read.lost > 0) finding_.report("the event ring lost events");
    next_event_ = read.next_id;
    for (std::size_t i = 0; i < read.count; ++i) take(events[i]);
    if (read.count < events.size()) return;
  }
}

void Oracle::take(const BlockEvent& event) {
  if (event.kind == BlockEventKind::cleared) {
    for (KeyNumber key = 0; key < keys(); ++key) {
      const bool left = event.tier ? present_in(key, *tier_of(*event.tier)) : present(key);
      if (left) finding_.report(text(key) + " is there after a tier was reported empty");
    }
    return;
  }
  const auto at = numbers_.find(*event.key);
  if (at == numbers_.end()) return finding_.report("an event names an unknown key");
  // What this server knows of the store, which the store itself knows better.
  if (event.tier == EventTier::shared) return;
  const Tier tier = *tier_of(*event.tier);
  if (tell_) {
    std::fprintf(stderr, "  %s %s %s\n", text(at->second).c_str(),
                 std::string(to_string(event.kind)).c_str(), std::string(to_string(tier)).c_str());
  }
  bool& there = where_[at->second][index_of(tier)];
  const bool stored = event.kind == BlockEventKind::stored;
  if (there == stored) {
    finding_.report(text(at->second) +
                    (stored ? " is stored twice in " : " is removed twice from ") +
                    std::string(to_string(tier)));
  }
  if (stored && erased_.contains(at->second)) {
    finding_.report(text(at->second) + " came back after it was erased");
  }
  if (!stored && is_reached(at->second)) {
    for (KeyNumber key = 0; key < keys(); ++key) {
      const bool is_last =
          std::ranges::none_of(children(key), [this](KeyNumber child) { return present(child); });
      if (present_in(key, tier) && is_last && !is_reached(key) && !held_.contains(key) &&
          !ever_pinned_.contains(key)) {
        outlasted_[index_of(tier)].insert(key);
      }
    }
  }
  there = stored;
  // committed() sets the time of expiry.
  if (stored) return;
  if (!present(at->second)) {
    ends_[at->second] = {};
    to_be_stored_.erase(at->second);
    if (!in_store_.contains(at->second)) left_too_early_.insert(at->second);
  }
  for (const KeyNumber child : children(at->second)) {
    // A pin of a block does not hold the blocks before it.
    if (present_in(child, tier) && !ever_pinned_.contains(child)) {
      cut_chains_[index_of(tier)] = true;
    }
  }
  if (tier != Tier::disk) return;
  durable_.erase(at->second);
  doubtful_.erase(at->second);
  if (becoming_durable_) becoming_durable_->erase(at->second);
}

std::optional<Tier> Oracle::highest(KeyNumber key) const {
  for (const Tier tier : kTiers) {
    if (present_in(key, tier)) return tier;
  }
  return std::nullopt;
}

bool Oracle::is_reached(KeyNumber key) const {
  if (!present(key)) return false;
  const auto before = needed_by(key);
  return !before || is_reached(*before);
}

std::set<KeyNumber> Oracle::all_in(Tier tier) const {
  std::set<KeyNumber> all;
  for (KeyNumber key = 0; key < keys(); ++key) {
    if (present_in(key, tier) && !ttl_ms(key)) all.insert(key);
  }
  return all;
}

std::size_t Oracle::count_in(Tier tier) const {
  return static_cast<std::size_t>(
      std::ranges::count_if(where_, [tier](const Tiers& where) { return where[index_of(tier)]; }));
}

void Oracle::pinned(const Pinned& pin) {
  ever_pinned_.insert(pin.keys.begin(), pin.keys.end());
  if (!pin.all || faulty_) return;
  for (const KeyNumber key : pin.keys) {
    if (!present(key) || ttl_ms(key)) continue;
    TimePoint& until = promised_[key];
    until = std::max(until, pin.until);
  }
}

void Oracle::erased(KeyNumber key) {
  if (committing_[key] == 0) erased_.insert(key);
}

void Oracle::commit_begun(KeyNumber key) {
  erased_.erase(key);
  ++committing_[key];
}

void Oracle::may_go(std::span<const KeyNumber> keys) {
  for (const KeyNumber key : keys) promised_.erase(key);
}

void Oracle::check_pins(TimePoint now) {
  std::erase_if(promised_, [now](const auto& promise) { return promise.second <= now; });
  for (const auto& [key, until] : promised_) {
    if (!present(key)) return finding_.report(text(key) + " disappeared while a pin held it");
  }
}

void Oracle::shared(std::span<const KeyNumber> keys) {
  for (const KeyNumber key : keys) {
    if (present(key) && !ttl_ms(key) && !left_too_early_.contains(key)) to_be_stored_.insert(key);
  }
}

void Oracle::check_shared() {
  for (const KeyNumber key : to_be_stored_) {
    if (!in_store_.contains(key)) return finding_.report(text(key) + " was shared and not stored");
  }
}

void Oracle::checkpoint_begun() {
  look();
  becoming_durable_ = all_in(Tier::disk);
}

void Oracle::checkpoint_ended(bool well) {
  look();
  if (well && becoming_durable_) {
    durable_ = *becoming_durable_;
    for (const KeyNumber key : doubtful_) durable_.erase(key);
  }
  becoming_durable_.reset();
}

void Oracle::doubt_all_but(const std::set<KeyNumber>& known) {
  for (const KeyNumber key : all_in(Tier::disk)) {
    if (!known.contains(key)) doubtful_.insert(key);
  }
}

std::set<KeyNumber> Oracle::beyond_doubt() const {
  std::set<KeyNumber> known = all_in(Tier::disk);
  std::erase_if(known, [this](KeyNumber key) { return doubtful_.contains(key); });
  return known;
}

void Oracle::check_new(const BlockHandle& handle) {
  if (was_killed_) return;
  if (handles_.emplace(handle.tier, handle.slot, handle.generation).second) return;
  finding_.report("slot " + std::to_string(handle.slot) + " of " +
                  std::string(to_string(handle.tier)) + " is handed out at generation " +
                  std::to_string(handle.generation) + " again");
}

void Oracle::forget_handles(bool also_of_disk) {
  std::erase_if(handles_, [also_of_disk](const auto& handle) {
    return also_of_disk || std::get<0>(handle) != Tier::disk;
  });
}

}  // namespace cairn::sim
