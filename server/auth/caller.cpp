#include "server/auth/caller.hpp"

#include <algorithm>

#include "base/assert.hpp"

namespace cairn {

std::string_view to_string(Role role) {
  switch (role) {
    case Role::none:
      return "none";
    case Role::metrics:
      return "metrics";
    case Role::peer:
      return "peer";
    case Role::read:
      return "read";
    case Role::write:
      return "write";
    case Role::admin:
      return "admin";
  }
  invariant_broken("role is an enumerator", "a right would be granted to nobody knows whom");
}

Caller::Caller(Rights rights)
    : rights_(std::move(rights)),
      name_(std::make_shared<const std::string>(rights_.name)),
      pins_(std::make_shared<LeaseQuota>(rights_.max_leased_blocks)),
      registered_(std::make_shared<MemoryQuota>(
          MemoryQuota::Terms{.limit_bytes = rights_.max_registered_bytes,
                             .whose = "this token's max_registered_bytes"})) {
  if (rights_.max_blocks != BlockQuota::kNoLimits) {
    quota_ = std::make_shared<BlockQuota>(rights_.max_blocks);
  }
}

void Caller::go_on_from(const Caller& before) {
  before.pins_->set_limit(rights_.max_leased_blocks);
  pins_ = before.pins_;
  before.registered_->set_limit(rights_.max_registered_bytes);
  registered_ = before.registered_;
  if (quota_ == nullptr || before.quota_ == nullptr) return;
  before.quota_->set_limits(rights_.max_blocks);
  quota_ = before.quota_;
}

bool Caller::may(Role role) const {
  const bool is_narrow = rights_.role == Role::metrics || rights_.role == Role::peer;
  if (is_narrow && role != Role::none) return rights_.role == role;
  return rights_.role >= role;
}

Error lacks_role(const Caller& caller, Role role) {
  return {ErrorCode::forbidden, "this requires the role '" + std::string(to_string(role)) +
                                    "'; the token '" + caller.name() + "' has '" +
                                    std::string(to_string(caller.role())) + "'"};
}

bool Caller::may_touch(std::string_view cache) const {
  return !is_confined() ||
         std::find(rights_.caches.begin(), rights_.caches.end(), cache) != rights_.caches.end();
}

bool Caller::take_request(TimePoint now) const {
  if (rights_.requests_per_s == 0) return true;
  const Duration each = std::chrono::nanoseconds(1'000'000'000 / rights_.requests_per_s);
  MutexLock lock(mutex_);
  const TimePoint paid_until = std::max(paid_until_, now) + each;
  if (paid_until - now > std::chrono::seconds(1)) return false;
  paid_until_ = paid_until;
  return true;
}

}  // namespace cairn
