#include "blockmgr/remote_tier/remote_url_watch.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "transport/store/wire_address.hpp"

namespace cairn {
namespace {

constexpr std::chrono::milliseconds kUrlLifetime{10'000};
// Two may fail before it expires.
constexpr std::chrono::milliseconds kPeriod{3'000};
// Nobody waits for it.
constexpr std::chrono::milliseconds kPatience{2'000};

// A server's instance is HOST/NUMBER. Ignores anything else in the store.
bool is_instance(std::string who) {
  std::ranges::replace(who, '/', '-');
  return is_host(who);
}

}  // namespace

RemoteUrlWatch::RemoteUrlWatch(const Services& services, Self self)
    : services_(services),
      self_(std::move(self)),
      name_("cairn-server:" + self_.url),
      began_(services.clock.now()),
      next_(began_) {}

void RemoteUrlWatch::look() {
  const TimePoint now = services_.clock.now();
  if (now < next_) return;
  next_ = now + kPeriod;
  services_.under_way.enter();
  services_.store.announce(
      {.blocks = {{.name = name_}},
       .who = self_.instance,
       .ttl_ms = static_cast<std::uint64_t>(kUrlLifetime.count())},
      [self = shared_from_this()](std::size_t count) { self->announced(count > 0); });
}

void RemoteUrlWatch::announced(bool is_announced) {
  // This server may have been killed and restarted: its old registration expires within a lifetime.
  if (!is_announced || services_.clock.now() - began_ < kUrlLifetime + kPeriod) {
    return services_.under_way.leave();
  }
  services_.store.find_holders(
      {.names = {name_}, .within = kPatience},
      [self = shared_from_this()](const std::vector<std::optional<RemoteStore::Holders>>& all) {
        if (all.front()) self->found(*all.front());
        self->services_.under_way.leave();
      });
}

void RemoteUrlWatch::found(const RemoteStore::Holders& all) {
  MutexLock lock(mutex_);
  others_.clear();
  for (const RemoteStore::Holder& one : all) {
    if (one.who != self_.instance && is_instance(one.who)) others_.push_back(one.who);
  }
}

std::vector<std::string> RemoteUrlWatch::others() const {
  MutexLock lock(mutex_);
  return others_;
}

void RemoteUrlWatch::end() { services_.store.withdraw({.names = {name_}, .who = self_.instance}); }

}  // namespace cairn
