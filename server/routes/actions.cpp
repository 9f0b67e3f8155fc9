// Actions: pin, unpin, retain, prefetch, demote, share. They are wishes: a wrong one costs a miss,
// never a byte. The response has a result for each.
#include <algorithm>
#include <iterator>

#include "blockmgr/index/group_search.hpp"
#include "server/codec/action_body.hpp"
#include "server/codec/ids.hpp"
#include "server/codec/requests.hpp"
#include "server/routes/common.hpp"
#include "server/routes/handlers.hpp"
#include "server/routes/peer_share.hpp"

namespace cairn::routes {
namespace {

// How long a share waits at least until the other server knows its blocks. They are there after 0.1
// to 0.7 s.
constexpr std::uint32_t kPeerWaitMs = 2'000;

// How long a prefetch waits for the answers of the shared tier. 65,536 keys take 0.2 s.
constexpr std::chrono::milliseconds kPrefetchPatience{1'000};

// What became of an action.
struct ActionResult {
  ActionOutcome outcome = ActionOutcome::accepted;
  std::uint64_t blocks = 0;
  std::uint64_t missing = 0;
  std::string reason = {};  // empty: it was done in full
  std::optional<PinId> pin = {};
  std::optional<TransferId> transfer = {};
};

// Blocks that an action left out, and why.
struct LeftOut {
  std::uint64_t blocks = 0;
  std::string_view reason;
};

// The outcome of an action on `blocks` of its target, without those that are `missing`. The reason
// is that of the first kind of blocks left out.
void conclude(ActionResult& result, std::initializer_list<LeftOut> left_out) {
  const auto first =
      std::ranges::find_if(left_out, [](const LeftOut& one) { return one.blocks > 0; });
  if (first != left_out.end()) {
    result.outcome = result.blocks > 0 ? ActionOutcome::clipped : ActionOutcome::rejected;
    result.reason = first->reason;
  } else if (result.blocks == 0) {
    result.outcome = ActionOutcome::missing;
  }
}

ActionResult rejected(std::string_view reason) {
  return {.outcome = ActionOutcome::rejected, .reason = std::string(reason)};
}

// A queue that is full now has room later.
ActionResult refused(const Error& error) {
  const bool is_full = error.code == ErrorCode::queue_full || error.code == ErrorCode::too_many;
  return {.outcome = is_full ? ActionOutcome::deferred : ActionOutcome::rejected,
          .reason = std::string(to_string(error.code))};
}

// The actions of one request, one after another. Some go on when the shared tier has answered.
class ActionRun : public std::enable_shared_from_this<ActionRun> {
 public:
  struct Caller {
    LeaseHolder holder = {};
    std::shared_ptr<BlockQuota> quota = {};
    std::shared_ptr<LeaseQuota> pins = {};
    bool may_share_with_peers = false;
    bool only_prefetches = false;  // another server
  };
  ActionRun(Service& service, std::shared_ptr<Cache> cache, ActionsBody body, Caller caller,
            Reply reply)
      : service_(service),
        cache_(std::move(cache)),
        body_(std::move(body)),
        caller_(std::move(caller)),
        reply_(std::move(reply)) {}

  void next() {
    while (results_.size() < body_.actions.size()) {
      Action& action = body_.actions[results_.size()];
      if (!action.refusal.empty()) {
        add(rejected(action.refusal));
      } else if (caller_.only_prefetches && action.type != ActionType::prefetch) {
        add(rejected(to_string(ErrorCode::forbidden)));
      } else if (action.type == ActionType::prefetch || action.type == ActionType::share) {
        const bool done = action.type == ActionType::share ? share(action) : prefetch(action);
        if (!done) return;  // it goes on later
      } else {
        add(run(action));
      }
    }
    service_.waits.wait_for_all(waited_, [self = shared_from_this()] { self->answer(); });
  }

 private:
  ActionResult run(Action& action) {
    switch (action.type) {
      case ActionType::pin:
        return pin(action);
      case ActionType::unpin:
        return unpin(action);
      case ActionType::retain:
        return retain(action);
      case ActionType::demote:
        return demote(action);
      case ActionType::share:
      case ActionType::prefetch:
      case ActionType::unknown:
        break;
    }
    return rejected("unknown_type");
  }

  // The blocks of the target that are here, of all KV groups, in prefix order; of a key that is not
  // here the block of the first group.
  std::vector<BlockKey> blocks_of(Action& action) const {
    if (action.session) return cache_->keys_of_session(caller_.holder, *action.session);
    return blocks_of_keys(*cache_, std::move(action.keys), std::nullopt);
  }

  ActionResult pin(Action& action) {
    const std::vector<BlockKey> keys = blocks_of(action);
    const auto pinned = cache_->pin({.keys = keys,
                                     .ttl_ms = action.ttl_ms,
                                     .refresh_on_hit = action.refresh_on_hit,
                                     .max_blocks = action.max_blocks,
                                     .holder = caller_.holder,
                                     .session = action.session.value_or(std::string())});
    if (!pinned) return refused(pinned.error());
    ActionResult result{.blocks = pinned->blocks, .missing = pinned->missing, .pin = pinned->pin};
    conclude(result, {{pinned->budget, "budget"},
                      {pinned->too_many, "too_many"},
                      {pinned->beyond, "max_blocks"}});
    return result;
  }

  ActionResult unpin(Action& action) {
    ActionResult result;
    if (action.session) {
      const auto blocks = cache_->unpin_session(caller_.holder, *action.session);
      if (!blocks) return refused(blocks.error());
      result.blocks = *blocks;
    } else {
      const std::vector<BlockKey> keys = blocks_of(action);
      const auto blocks = cache_->unpin(keys, caller_.holder);
      if (!blocks) return refused(blocks.error());
      result.blocks = *blocks;
      result.missing = keys.size() - *blocks;
    }
    conclude(result, {});
    return result;
  }

  ActionResult retain(Action& action) {
    const std::vector<BlockKey> keys = blocks_of(action);
    const std::size_t most = std::min<std::uint64_t>(keys.size(), action.max_blocks);
    const auto retained = cache_->retain({.keys = std::span(keys).first(most),
                                          .priority = action.priority,
                                          .ttl_ms = action.ttl_ms,
                                          .holder = caller_.holder});
    if (!retained) return refused(retained.error());
    ActionResult result{.blocks = retained->blocks, .missing = retained->missing};
    conclude(result, {{keys.size() - most, "max_blocks"}, {retained->budget, "budget"}});
    return result;
  }

  ActionResult demote(Action& action) {
    const auto& tiers = cache_->config().tiers;
    if (std::ranges::count_if(tiers, [](const auto& tier) { return tier.has_value(); }) < 2) {
      return rejected("no_lower_tier");
    }
    const std::vector<BlockKey> keys = blocks_of(action);
    // A session's blocks begin with those that others use too. Keys are as precise as a transfer's.
    const auto demoted = cache_->demote({.keys = keys,
                                         .to = action.to,
                                         .spares_shared = action.session.has_value(),
                                         .max_blocks = action.max_blocks,
                                         .priority = action.priority.value_or(0),
                                         .holder = caller_.holder,
                                         .quota = caller_.quota,
                                         .pins = caller_.pins});
    if (!demoted) return refused(demoted.error());
    ActionResult result{.blocks = demoted->blocks, .missing = demoted->missing};
    for (const TransferId id : demoted->transfers) wait_for(id, action.wait_ms);
    if (!demoted->transfers.empty()) result.transfer = demoted->transfers.back();
    if (demoted->error) {
      ActionResult why = refused(*demoted->error);
      result.reason = why.reason;
      result.outcome = result.blocks > 0 ? ActionOutcome::clipped : why.outcome;
      return result;
    }
    conclude(result, {{demoted->spared, "shared"}, {demoted->beyond, "max_blocks"}});
    return result;
  }

  std::shared_ptr<RemoteTier> remote_tier() const {
    return service_.shared == nullptr ? nullptr : service_.shared->of(cache_);
  }

  // Returns false if its result is added later, and next() is called then.
  bool share(Action& action) {
    if (action.peer && !caller_.may_share_with_peers) return add(rejected("forbidden"));
    const auto tier = remote_tier();
    if (tier == nullptr) return add(rejected("no_shared_tier"));
    const std::vector<BlockKey> keys = blocks_of(action);
    const std::vector<KeyView> views(keys.begin(), keys.end());
    const std::vector<bool> here = cache_->contains(views);
    ActionResult result;
    std::vector<BlockKey> shared;
    std::uint64_t beyond = 0;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (!here[i]) {
        ++result.missing;
      } else if (shared.size() >= action.max_blocks) {
        ++beyond;
      } else {
        shared.push_back(keys[i]);
      }
    }
    result.blocks = tier->share(shared);
    conclude(result, {{shared.size() - result.blocks, "queue_full"}, {beyond, "max_blocks"}});
    if (result.outcome == ActionOutcome::rejected && !shared.empty()) {
      result.outcome = ActionOutcome::deferred;
    }
    if (!action.peer || result.blocks == 0) return add(std::move(result));
    tell_peer(action, shared, std::move(result));
    return false;
  }

  // The other server resolves a key to the blocks of all KV groups.
  void tell_peer(const Action& action, const std::vector<BlockKey>& shared, ActionResult result) {
    std::vector<BlockKey> keys;
    for (const BlockKey& key : shared) {
      BlockKey named(key.view().in(0));
      if (keys.empty() || keys.back() != named) keys.push_back(std::move(named));
    }
    const std::uint64_t count = keys.size();
    auto told = [self = shared_from_this(), result = std::move(result),
                 count](const Result<std::uint64_t>& there) mutable {
      if (!there) {
        ActionResult why = refused(there.error());
        result.outcome = why.outcome;
        result.reason = "peer_" + why.reason;
        result.blocks = 0;
      } else if (*there < count) {
        result.outcome = *there > 0 ? ActionOutcome::clipped : ActionOutcome::rejected;
        result.reason = "peer";
        result.blocks = *there;
      }
      self->on_readers([self, result = std::move(result)] {
        self->add(result);
        self->next();
      });
    };
    share_with_peer(service_,
                    {.server = *action.peer,
                     .cache = cache_->config().name,
                     .keys = std::move(keys),
                     .within_ms = std::max(action.wait_ms, kPeerWaitMs)},
                    std::move(told));
  }

  // A prefetch, from what the cache has to what the shared tier has.
  struct Prefetch {
    PrefetchRequest terms;  // without keys
    std::uint32_t wait_ms = 0;
    std::optional<std::uint32_t> deadline_ms = {};
    ActionResult result = {};
    std::vector<BlockKey> missing = {};
    std::uint64_t beyond = 0;
    std::vector<BlockKey> coming = {};              // from the shared tier
    std::shared_ptr<const PrefetchRoom> room = {};  // theirs
    // In a cache of several KV groups:
    std::vector<BlockKey> prompt = {};  // the keys of the target
    std::vector<bool> present = {};     // present_by_group() of them
    std::size_t needed = 0;             // blocks that may come, if there is room for all
  };

  // Returns false if its result is added later, and next() is called then.
  bool prefetch(Action& action) {
    const Tier to = action.to.value_or(
        cache_->layout(Tier::pinned) != nullptr ? Tier::pinned : cache_->highest_tier());
    auto prefetch =
        std::make_shared<Prefetch>(Prefetch{.terms = {.to = to,
                                                      .priority = action.priority.value_or(0),
                                                      .max_blocks = action.max_blocks,
                                                      .quota = caller_.quota,
                                                      .holder = caller_.holder},
                                            .wait_ms = action.wait_ms,
                                            .deadline_ms = action.deadline_ms});
    // Blocks of several KV groups are of use together: which of them are needed depends on how far
    // the shared tier can continue the prefix of all.
    const bool by_groups = !action.session && cache_->config().kv_group_count() > 1;
    if (by_groups) {
      prefetch->prompt = std::move(action.keys);
      prefetch->present = present_by_group(*cache_, prefetch->prompt);
    }
    const std::vector<BlockKey> keys =
        by_groups ? blocks_of_keys(prefetch->prompt, prefetch->present) : blocks_of(action);
    PrefetchRequest request = prefetch->terms;
    request.keys = keys;
    request.makes_room = !by_groups;
    auto start = cache_->prefetch(request);
    if (!start) return add(refused(start.error()));
    prefetch->result = {.blocks = start->blocks, .transfer = start->transfer};
    prefetch->missing = std::move(start->missing);
    prefetch->beyond = start->beyond;
    prefetch->room = std::move(start->room);
    prefetch->terms.max_blocks -= start->copies;
    if (start->transfer) follow(*prefetch, *start->transfer);
    const auto tier = by_groups || !prefetch->missing.empty() ? remote_tier() : nullptr;
    if (tier == nullptr) {
      end(*prefetch);
      return true;
    }
    if (by_groups) {
      look_for_groups(*tier, prefetch);
    } else {
      look_for_missing(*tier, start->may_come, prefetch);
    }
    return false;
  }

  void look_for_missing(RemoteTier& tier, std::size_t may_come,
                        const std::shared_ptr<Prefetch>& prefetch) {
    const std::vector<KeyView> views(prefetch->missing.begin(), prefetch->missing.end());
    auto looked = [self = shared_from_this(), prefetch,
                   may_come](const RemoteTier::Beyond& beyond) {
      self->on_readers([self, prefetch, may_come, beyond] {
        const auto there = std::min<std::size_t>(beyond.blocks, prefetch->missing.size());
        const auto count = std::min(there, may_come);
        const auto first = prefetch->missing.begin();
        prefetch->coming = {first, first + static_cast<std::ptrdiff_t>(count)};
        prefetch->missing.erase(first, first + static_cast<std::ptrdiff_t>(there));
        prefetch->beyond += there - count;
        prefetch->result.blocks += count;
        self->fetched(*prefetch, beyond.transfers);
      });
    };
    tier.probe_remote({.keys = views,
                       .to = prefetch->terms.to,
                       .quota = caller_.quota,
                       .most_fetched = may_come,
                       .patience = kPrefetchPatience},
                      std::move(looked));
  }

  void look_for_groups(RemoteTier& tier, const std::shared_ptr<Prefetch>& prefetch) {
    const std::vector<BlockKey>& prompt = prefetch->prompt;
    const std::size_t groups = cache_->config().kv_group_count();
    GroupSearch here({.config = cache_->config(), .num_keys = prompt.size()});
    const auto searched = here.run([&](GroupSearch::Block block) -> Result<bool> {
      return prefetch->present[block.key * groups + block.kv_group];
    });
    CAIRN_ASSERT(searched.has_value(), "a search in memory fails");
    const std::vector<KeyView> views(prompt.begin(), prompt.end());
    const std::uint32_t matched = here.matched();
    auto make_room = [self = shared_from_this(),
                      prefetch](std::span<const BlockKey> blocks) -> std::size_t {
      prefetch->needed = std::max(prefetch->needed, blocks.size());
      PrefetchRequest request = prefetch->terms;
      request.keys = blocks;
      auto start = self->cache_->prefetch(request);
      if (!start) return 0;
      if (start->may_come == start->missing.size()) {
        prefetch->coming = {blocks.begin(), blocks.end()};
        prefetch->room = std::move(start->room);
      }
      return blocks.size() - (start->missing.size() - start->may_come);
    };
    auto looked = [self = shared_from_this(), prefetch, matched](const RemoteTier::Beyond& beyond) {
      self->on_readers([self, prefetch, matched, beyond] {
        // The missing keys are in the order of the prompt.
        auto missing = prefetch->missing.begin();
        for (const BlockKey& key : std::span(prefetch->prompt).first(matched + beyond.blocks)) {
          if (missing != prefetch->missing.end() && *missing == key) ++missing;
        }
        prefetch->missing.erase(prefetch->missing.begin(), missing);
        prefetch->beyond += prefetch->needed - prefetch->coming.size();
        prefetch->result.blocks += prefetch->coming.size();
        self->fetched(*prefetch, beyond.transfers);
      });
    };
    tier.probe_groups({.keys = views,
                       .matched = matched,
                       .to = prefetch->terms.to,
                       .quota = caller_.quota,
                       .patience = kPrefetchPatience,
                       .make_room = std::move(make_room)},
                      std::move(looked));
  }

  // The transfers bring what is coming.
  void fetched(Prefetch& prefetch, std::span<const TransferId> transfers) {
    for (const TransferId id : transfers) {
      follow(prefetch, id);
      if (!prefetch.result.transfer) prefetch.result.transfer = id;
      static_cast<void>(service_.manager.watch_transfer(
          id, [cache = cache_, holder = caller_.holder, coming = prefetch.coming,
               room = prefetch.room](const TransferStatus&) mutable {
            cache->note_prefetched(coming, holder);
            room.reset();
          }));
    }
    prefetch.room.reset();
    end(prefetch);
    next();
  }

  // Waits for the transfer as long as the action wants, and cancels it at the deadline.
  void follow(const Prefetch& prefetch, TransferId id) {
    wait_for(id, prefetch.wait_ms);
    if (!prefetch.deadline_ms) return;
    const auto cancel = [this_service = &service_, id] {
      static_cast<void>(this_service->manager.cancel_transfer(id));
    };
    // A transfer that has ended is not changed by this. Without room for the timer the deadline
    // could not be kept.
    if (!service_.waits.wait(id, *prefetch.deadline_ms, cancel)) cancel();
  }

  void end(Prefetch& prefetch) {
    ActionResult& result = prefetch.result;
    result.missing = prefetch.missing.size();
    if (result.missing > 0) cache_->count_prefetch_missing(result.missing);
    conclude(result, {{prefetch.beyond, "budget"}});
    add(std::move(result));
  }

  void wait_for(TransferId id, std::uint32_t wait_ms) {
    if (wait_ms > 0) waited_.push_back({id, wait_ms});
  }

  // The threads of the store and of other servers' answers must not be kept.
  template <class Work>
  void on_readers(const Work& work) {
    if (!service_.readers.try_post(work)) work();
  }

  // Returns true: the action is done.
  bool add(ActionResult result) {
    cache_->count_action(body_.actions[results_.size()].type, result.outcome);
    results_.push_back(std::move(result));
    return true;
  }

  void answer() {
    ordered_json results = ordered_json::array();
    for (std::size_t i = 0; i < results_.size(); ++i) {
      const ActionResult& result = results_[i];
      const auto& id = body_.actions[i].id;
      ordered_json& body =
          results.emplace_back(ordered_json{{"id", id ? ordered_json(*id) : ordered_json(nullptr)},
                                            {"outcome", to_string(result.outcome)},
                                            {"blocks", result.blocks},
                                            {"missing", result.missing}});
      if (!result.reason.empty()) body["reason"] = result.reason;
      if (result.pin) body["pin"] = pin_text(*result.pin);
      if (result.transfer) body["transfer"] = transfer_text(*result.transfer);
    }
    ordered_json document = ordered_json::object();
    if (body_.message_id) document["message_id"] = *body_.message_id;
    document["results"] = std::move(results);
    reply_.document(200, document);
  }

  Service& service_;
  const std::shared_ptr<Cache> cache_;
  ActionsBody body_;
  const Caller caller_;
  Reply reply_;
  std::vector<ActionResult> results_;
  std::vector<TransferWaits::Waited> waited_;
};

}  // namespace

void actions(Service& service, const Call& call, std::shared_ptr<Cache> cache, Reply reply) {
  const bool is_server = call.caller != nullptr && call.caller->role() == Role::peer;
  if (auto may = check_role(call, Role::write); !may && !is_server) return reply.error(may.error());
  const ActionLimits limits{.max_keys = service.manager.options().max_blocks_per_request,
                            .tokens_per_key = cache->config().tokens_per_key()};
  auto body = read_body(call, max_values(service),
                        [&limits](Fields& fields) { return read_actions(fields, limits); });
  if (!body) return reply.error(body.error());
  ActionRun::Caller caller{.holder = call.holder(),
                           .quota = call.quota(),
                           .pins = call.pins(),
                           .may_share_with_peers = call.is_admin(),
                           .only_prefetches = is_server};
  answer_on(service.readers, std::move(reply),
            [&service, cache = std::move(cache), body = std::move(*body),
             caller = std::move(caller)](Reply& answer) mutable {
              std::make_shared<ActionRun>(service, std::move(cache), std::move(body),
                                          std::move(caller), std::move(answer))
                  ->next();
            });
}

}  // namespace cairn::routes
