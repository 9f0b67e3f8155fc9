// Clients that use the store which servers share.
#include "tests/simulation/clients_state.hpp"

namespace cairn::sim {

void Clients::share(Random& random) {
  State& self = *state_;
  std::vector<KeyNumber> keys = self.some_chain(random);
  self.oracle.look();
  std::erase_if(keys, [&self](KeyNumber key) { return !self.oracle.present(key); });
  self.oracle.held_in_this_step(keys);
  const std::uint64_t shared = self.remote_tier->share(self.names(keys));
  // The simulated cache has fewer keys than may wait.
  if (shared != keys.size()) self.unexpected("share", "the queue is full");
  self.oracle.shared(keys);
}

// Until it is destroyed, these keys may come, erased or not.
class Clients::Coming {
 public:
  Coming(std::shared_ptr<State> state, std::vector<KeyNumber> keys)
      : state_(std::move(state)), keys_(std::move(keys)) {
    ++state_->waiting;
    for (const KeyNumber key : keys_) state_->oracle.commit_begun(key);
  }
  ~Coming() {
    --state_->waiting;
    if (state_->over) return;
    state_->oracle.look();
    for (const KeyNumber key : keys_) state_->oracle.commit_ended(key);
  }
  Coming(const Coming&) = delete;
  Coming& operator=(const Coming&) = delete;

  // As a prefetch on a server does, before what the store has is fetched.
  std::size_t make_room(std::span<const BlockKey> blocks, Tier to) {
    if (state_->over) return 0;
    state_->oracle.held_in_this_step(keys_);
    auto start = state_->cache->prefetch({.keys = blocks, .to = to});
    if (!start) return 0;
    if (start->transfer) state_->transfers.push_back(*start->transfer);
    const std::size_t without = start->missing.size() - start->may_come;
    if (without == 0) room_ = std::move(start->room);
    return blocks.size() - without;
  }

 private:
  const std::shared_ptr<State> state_;
  const std::vector<KeyNumber> keys_;
  std::shared_ptr<const PrefetchRoom> room_ = {};
};

void Clients::fetch(Random& random) {
  State& self = *state_;
  std::vector<KeyNumber> keys = self.some_chain(random);
  for (KeyNumber& key : keys) key = self.oracle.in_group(key, 0);
  const std::vector<BlockKey> names = self.names(keys);
  const std::vector<KeyView> views = testing::views(names);
  const Tier to = random.once_in(2) ? self.remote_tier->default_tier() : self.some_tier(random);
  std::vector<KeyNumber> brought;
  for (KvGroupNumber group = 0; group < self.oracle.groups(); ++group) {
    for (const KeyNumber key : keys) brought.push_back(self.oracle.in_group(key, group));
  }
  // As a match does on a server.
  std::size_t here = 0;
  if (self.oracle.groups() == 1) {
    MatchResult result;
    const auto matched = self.cache->match(views, 0, result);
    if (!matched) return self.expect("match", matched.error(), {ErrorCode::too_many});
    here = result.blocks.size();
  } else {
    GroupMatch result;
    const auto matched = self.cache->match_groups({.keys = views, .lease_ms = 0}, result);
    if (!matched) return self.expect("match_groups", matched.error(), {ErrorCode::too_many});
    here = result.matched;
  }
  self.remote_tier->matched(std::span(views).first(here));
  auto coming = std::make_shared<Coming>(state_, std::move(brought));
  auto looked = [state = state_, coming](const RemoteTier::Beyond& beyond) {
    if (state->over) return;
    for (const TransferId id : beyond.transfers) {
      // It may have ended already.
      static_cast<void>(state->manager.watch_transfer(
          id, [coming](const TransferStatus&) mutable { coming.reset(); }));
      state->transfers.push_back(id);
    }
  };
  if (self.oracle.groups() > 1) {
    RemoteTier::GroupLook look{
        .keys = views, .matched = static_cast<std::uint32_t>(here), .to = to};
    if (random.once_in(2)) {
      look.make_room = [coming, to](std::span<const BlockKey> blocks) {
        return coming->make_room(blocks, to);
      };
    }
    return self.remote_tier->probe_groups(look, std::move(looked));
  }
  self.remote_tier->probe_remote({.keys = std::span(views).subspan(here), .to = to},
                                 std::move(looked));
}

}  // namespace cairn::sim
