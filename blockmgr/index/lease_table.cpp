#include "blockmgr/index/lease_table.hpp"

#include <algorithm>
#include <cstring>

#include "base/assert.hpp"

namespace cairn {
namespace {

// A closed lease keeps memory for this many slots for the next lease.
constexpr std::size_t kKeptCapacity = 256;

}  // namespace

std::size_t LeaseTable::SecretHash::operator()(const Secret& secret) const {
  std::size_t hash = 0;  // the secret is random already
  std::memcpy(&hash, secret.data(), sizeof(hash));
  return hash;
}

LeaseNumber LeaseTable::open(TimePoint expires_at, LeaseHolder holder) {
  CAIRN_ASSERT(!full(), "leases are bounded");
  if (unused_.empty()) {
    unused_.push_back(static_cast<LeaseNumber>(leases_.size()));
    leases_.emplace_back();
  }
  const LeaseNumber number = unused_.back();
  unused_.pop_back();
  Lease& lease = leases_[number];
  lease.id.cache = options_.cache;
  random_.fill(lease.id.secret);
  lease.expires_at = expires_at;
  lease.holder = std::move(holder);
  lease.is_open = true;
  by_secret_.emplace(lease.id.secret, number);
  by_end_.emplace(expires_at, number);
  return number;
}

Result<LeaseNumber> LeaseTable::find(const LeaseId& id) const {
  if (id.cache == options_.cache) {
    if (auto at = by_secret_.find(id.secret); at != by_secret_.end()) return at->second;
    if (std::ranges::find(expired_, id.secret) != expired_.end()) {
      return Error{ErrorCode::lease_expired, "the lease has expired"};
    }
  }
  return Error{ErrorCode::unknown_lease, "the cache has no such lease"};
}

void LeaseTable::count(LeaseNumber number) {
  Lease& lease = leases_[number];
  ++lease.changes;
  if (lease.pins == nullptr) return;
  const std::size_t held = lease.held.size();
  if (held > lease.counted) lease.pins->add(held - lease.counted);
  if (held < lease.counted) lease.pins->remove(lease.counted - held);
  lease.counted = held;
}

void LeaseTable::renew(LeaseNumber number, TimePoint expires_at) {
  Lease& lease = leases_[number];
  by_end_.erase({lease.expires_at, number});
  lease.expires_at = expires_at;
  by_end_.emplace(expires_at, number);
}

void LeaseTable::close(LeaseNumber number, bool expired) {
  Lease& lease = leases_[number];
  by_secret_.erase(lease.id.secret);
  by_end_.erase({lease.expires_at, number});
  if (expired) {
    if (expired_.size() < kRememberedExpired) {
      expired_.push_back(lease.id.secret);
    } else {
      expired_[next_expired_++ % kRememberedExpired] = lease.id.secret;
    }
  }
  lease.is_open = false;
  lease.quota.reset();
  lease.holder.reset();
  lease.held.clear();
  count(number);
  lease.pins.reset();
  if (lease.held.capacity() > kKeptCapacity) lease.held.shrink_to_fit();
  unused_.push_back(number);
}

std::optional<LeaseNumber> LeaseTable::overdue(TimePoint now) const {
  if (by_end_.empty() || by_end_.begin()->first > now) return std::nullopt;
  return by_end_.begin()->second;
}

}  // namespace cairn
