#include "tests/simulation/run.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>

#include "tests/fakes/temp_dir.hpp"
#include "tests/simulation/files.hpp"
#include "tests/simulation/world.hpp"

namespace cairn::sim {
namespace {

namespace fs = std::filesystem;

// How a run of the server ends.
enum class End : std::uint8_t { stop, kill, kill_without_index, power_cut };

std::vector<std::uint64_t> sizes_of(const CacheConfig& config) {
  std::vector<std::uint64_t> sizes;
  for (std::size_t i = 0; i < config.kv_group_count(); ++i) {
    sizes.push_back(block_bytes(config.shape_of(static_cast<KvGroupNumber>(i))));
  }
  return sizes;
}

class Run {
 public:
  explicit Run(const RunOptions& options)
      : options_(options),
        setup_(options.seed),
        config_(setup_.config),
        queue_(finding_),
        oracle_(finding_, {.block_bytes = sizes_of(setup_.config)}, options.tell) {}

  RunOutcome run() {
    queue_.reseed(options_.seed);
    begin_life();
    const std::uint32_t count =
        options_.only ? static_cast<std::uint32_t>(options_.only->size()) : options_.steps;
    for (std::uint32_t i = 0; i < count && !finding_.any(); ++i) {
      const std::uint32_t step = options_.only ? (*options_.only)[i] : i;
      outcome_.step = step;
      do_step(step);
      ++outcome_.steps;
      outcome_.fingerprint = Random::mixed(
          outcome_.fingerprint ^
          static_cast<std::uint64_t>(queue_.now().time_since_epoch().count()) ^ queue_.steps());
    }
    if (!finding_.any()) {
      outcome_.step = options_.steps;
      queue_.reseed(Random::mixed(options_.seed ^ options_.steps));
      rest();
    }
    world_.reset();
    outcome_.events = queue_.steps();
    outcome_.finding = finding_.what();
    return outcome_;
  }

 private:
  static constexpr std::size_t kRare = 17;  // number of rare actions

  void do_step(std::uint32_t step) {
    Random random(Random::mixed(options_.seed * 0x9E3779B97F4A7C15u + step));
    queue_.reseed(random.next());
    const char* const name = act(random);
    if (options_.tell) {
      std::fprintf(stderr, "%u at %lld us: %s\n", step,
                   static_cast<long long>(queue_.now().time_since_epoch().count() / 1000), name);
    }
    oracle_.look();
    // Runs few events per step, so that the clients' calls pile up and overlap.
    std::uint64_t events = random.once_in(2) ? random.below(3) : 0;
    while (events-- > 0 && queue_.step()) {
    }
    oracle_.look();
    world_->check_evictions();
    oracle_.check_pins(queue_.now());
    if (stopped_) return begin_after(*std::exchange(stopped_, std::nullopt));
  }

  const char* act(Random& random) {
    Clients& clients = world_->clients();
    struct Verb {
      const char* name;
      std::uint32_t weight;
      void (Clients::*act)(Random&);
    };
    static constexpr Verb kVerbs[] = {
        {"allocate", 10, &Clients::allocate},
        {"write", 40, &Clients::write},
        {"commit", 14, &Clients::commit},
        {"match", 14, &Clients::match},
        {"match_groups", 8, &Clients::match_groups},
        {"hold", 3, &Clients::hold},
        {"read", 10, &Clients::read},
        {"read_prefix", 3, &Clients::read_prefix},
        {"look", 16, &Clients::look_at_held},
        {"release", 10, &Clients::release},
        {"renew", 3, &Clients::renew},
        {"evict", 3, &Clients::evict},
        {"erase", 2, &Clients::erase},
        {"transfer", 6, &Clients::transfer},
        {"onboard", 6, &Clients::onboard},
        {"cancel", 2, &Clients::cancel},
    };
    constexpr std::uint32_t kSeldom = 3'000;  // each rare action happens once in this many steps
    const std::uint64_t seldom = random.below(kSeldom);
    if (seldom < kRare) return rare(seldom, random);
    if (seldom < 200) {
      queue_.advance(std::chrono::microseconds(random.below(seldom < 50 ? 500'000 : 5'000)));
      return "advance";
    }
    if (seldom < 300) {
      world_->tick();
      return "tick";
    }
    if (setup_.config.shared && random.once_in(12)) {
      const bool shares = random.once_in(2);
      shares ? clients.share(random) : clients.fetch(random);
      return shares ? "share" : "fetch";
    }
    if (setup_.pins && random.once_in(16)) {
      static constexpr std::array<Verb, 4> kActions = {{{"pin", 1, &Clients::pin},
                                                        {"unpin", 1, &Clients::unpin},
                                                        {"prefetch", 1, &Clients::prefetch},
                                                        {"demote", 1, &Clients::demote}}};
      // Half of them pin.
      const Verb& action = kActions[random.once_in(2) ? 0 : random.below(kActions.size())];
      (clients.*action.act)(random);
      return action.name;
    }
    std::uint32_t all = 0;
    for (const Verb& verb : kVerbs) all += verb.weight;
    std::uint64_t pick = random.below(all);
    for (const Verb& verb : kVerbs) {
      if (pick < verb.weight) {
        (clients.*verb.act)(random);
        return verb.name;
      }
      pick -= verb.weight;
    }
    return "nothing";
  }

  // Does a rare action, each once in kSeldom steps.
  const char* rare(std::uint64_t which, Random& random) {
    struct Rare {
      const char* name;
      void (Run::*act)(Random&);
    };
    static constexpr std::array<Rare, kRare> kActs = {{
        {"clear", &Run::clear},
        {"stop", &Run::stop},
        {"kill", &Run::kill},
        {"kill", &Run::kill},
        {"kill, lose the index", &Run::kill_without_index},
        {"power cut", &Run::cut_power},
        {"power cut", &Run::cut_power},
        {"end at a failpoint", &Run::end_at_place},
        {"end at a failpoint", &Run::end_at_place},
        {"rest", &Run::rest_now},
        {"resize", &Run::resize},
        {"recreate the cache", &Run::make_anew},
        {"checkpoint", &Run::checkpoint},
        {"checkpoint", &Run::checkpoint},
        {"checkpoint", &Run::checkpoint},
        {"rot", &Run::rot},
        {"lose the device", &Run::lose_device},
    }};
    (this->*kActs[which].act)(random);
    return kActs[which].name;
  }
  void clear(Random& random) { world_->clients().clear(random); }
  void stop(Random&) { end_life(End::stop); }
  void kill(Random&) { end_life(End::kill); }
  void kill_without_index(Random&) { end_life(End::kill_without_index); }
  void cut_power(Random&) { end_life(End::power_cut); }
  void end_at_place(Random& random) {
    stop_at_ = 1 + random.below(12);
    stop_as_ = random.once_in(2) ? End::kill : End::power_cut;
  }
  void rest_now(Random&) { rest(); }
  void checkpoint(Random&) { world_->manager().checkpoint(); }
  void make_anew(Random&) {
    // A lost device has no memory for the new cache.
    if (world_->device().lost()) return;
    config_ = setup_.config;
    is_between_caches_ = true;
    world_->make_anew(config_);
    is_between_caches_ = false;
    oracle_.nothing_is_durable();
    oracle_.forget_handles(true);
  }
  void lose_device(Random&) {
    if (setup_.faulty) world_->device().lose();
  }

  void begin_life() {
    ++outcome_.lives;
    fs::create_directories(here());
    world_ = std::make_unique<World>(
        World::Parts{.queue = queue_,
                     .oracle = oracle_,
                     .setup = setup_,
                     .config = config_,
                     .folder = here(),
                     .store = store_,
                     .far_store = far_store_,
                     .failpoint = [this](std::string_view place) { failpoint(place); }});
  }

  // A server that stops by itself ends its clients' calls. A killed one does not: its last calls
  // only change files that are not read any more.
  struct Stopped {
    End how = End::stop;
    std::set<KeyNumber> on_disk = {};
    std::set<KeyNumber> durable = {};
    std::set<KeyNumber> beyond_doubt = {};   // on disk, in both index and headers
    std::optional<CacheConfig> config = {};  // as remembered at that moment
  };

  void end_life(End how) {
    oracle_.look();
    stopped_ = Stopped{.how = how};
    if (how != End::stop) take_image(how);
  }

  void take_image(End how) {
    oracle_.look();
    oracle_.ignore_new_handles();
    stopped_->how = how;
    stopped_->on_disk = oracle_.all_in(Tier::disk);
    stopped_->durable = oracle_.durable();
    stopped_->beyond_doubt = oracle_.beyond_doubt();
    stopped_->config = config_;
    world_->disk().stop({.from = here(), .to = next(), .power_cut = how == End::power_cut});
  }

  // An image taken while a cache is dropped may contain it or not. The next run could not be
  // checked, so this takes none.
  void failpoint(std::string_view place) {
    if (is_between_caches_) return;
    if (place == "checkpoint.begun") {
      failures_ = world_ ? world_->disk().failures() : 0;
      oracle_.checkpoint_begun();
    }
    if (stop_at_ > 0 && --stop_at_ == 0 && world_ && !stopped_) {
      stopped_ = Stopped{};
      take_image(stop_as_);
    }
    // A checkpoint that ends after the image of a kill was taken flushed nothing in the image.
    const bool is_of_image = stopped_ && stopped_->how != End::stop;
    if (place == "checkpoint.ended" && !is_of_image) {
      oracle_.checkpoint_ended(world_ && failures_ == world_->disk().failures());
    }
  }

  void begin_after(Stopped stopped) {
    stop_at_ = 0;
    if (stopped.how == End::stop) {
      // Ends the clients first: those that wait for room would still get it.
      world_->end_clients();
      oracle_.look();
      stopped.on_disk = oracle_.all_in(Tier::disk);
    } else {
      world_->disk().set_faults({});
    }
    world_.reset();
    queue_.drain();
    if (finding_.any()) return;
    if (stopped.how != End::stop) {
      folder_ = !folder_;
      config_ = *stopped.config;
    }
    if (stopped.how == End::kill_without_index) remove_index(here());
    const bool keeps_index = stopped.how == End::stop || stopped.how == End::kill;
    const bool shrank = std::exchange(shrank_, false);
    // After a tier shrank and grew again, generations restart.
    oracle_.forget_handles(!keeps_index || shrank);
    if (!keeps_index) oracle_.forget_ends();
    begin_life();
    if (finding_.any()) return;
    oracle_.look();
    oracle_.forget_absent();
    const std::set<KeyNumber> after = oracle_.all_in(Tier::disk);
    // A tier that shrank may have kept more blocks, since leases held them.
    if (keeps_index &&
        (shrank ? !std::ranges::includes(stopped.on_disk, after) : after != stopped.on_disk)) {
      finding_.report(
          "after a restart the disk tier holds other keys: " + std::to_string(after.size()) +
          ", not " + std::to_string(stopped.on_disk.size()));
    }
    if (setup_.faulty) return;
    // A resize moves copies to other slots and does not flush them before it removes the old ones.
    world_->check_all_bytes(shrank ? std::set<KeyNumber>() : what_must_be_there(stopped));
    // Nothing is durable before the next checkpoint: the cut lost what came since the last one.
    if (stopped.how != End::power_cut) return;
    oracle_.nothing_is_durable();
    oracle_.doubt_all_but(stopped.durable);
  }

  static std::set<KeyNumber> what_must_be_there(const Stopped& stopped) {
    switch (stopped.how) {
      case End::stop:
      case End::kill:
        return stopped.on_disk;
      case End::kill_without_index:
        return stopped.beyond_doubt;
      case End::power_cut:
        return stopped.durable;
    }
    invariant_broken("End", "a value outside the enumeration");
  }

  void resize(Random& random) {
    CacheChange change;
    oracle_.all_may_go();  // the shares of pins change with the tiers
    for (const Tier tier : {Tier::pinned, Tier::disk}) {
      const auto& now = config_.tiers[index_of(tier)];
      if (!now || random.once_in(3)) continue;
      change.num_blocks[index_of(tier)] =
          units_for(config_, tier, 6 + static_cast<std::uint32_t>(random.below(24)));
    }
    if (change.num_blocks[index_of(Tier::disk)]) {
      oracle_.nothing_is_durable();
      shrank_ = true;
    }
    const auto changed = world_->cache().change(change, [this](const CacheConfig& config) {
      config_ = config;
      return Result<>();
    });
    if (changed || setup_.faulty) return;
    const ErrorCode code = changed.error().code;
    if (code != ErrorCode::leased && code != ErrorCode::state_conflict) {
      finding_.report("resize: " + changed.error().detail);
    }
  }

  void rot(Random& random) {
    if (setup_.faulty) rot_a_slot(here(), random);
  }

  // Clients release everything, and everything under way ends.
  void rest() {
    world_->clients().let_go();
    queue_.drain();
    // The calls that ended may have returned leases and readers.
    world_->clients().let_go();
    world_->settle();
    oracle_.look();
    if (finding_.any()) return;
    world_->check_at_rest();
    world_->check_all_bytes({});
  }

  fs::path here() const { return dir_.path() / (folder_ ? "a" : "b"); }
  fs::path next() const { return dir_.path() / (folder_ ? "b" : "a"); }

  const RunOptions options_;
  const Setup setup_;
  CacheConfig config_;  // as the server remembers it
  Finding finding_;
  Queue queue_;
  Oracle oracle_;
  fakes::TempDir dir_{options_.folder};
  Store::Values store_;
  Store::Values far_store_;
  bool folder_ = false;
  std::unique_ptr<World> world_;
  std::optional<Stopped> stopped_;
  bool shrank_ = false;  // the disk tier may have shrunk in this run of the server
  bool is_between_caches_ = false;
  std::uint64_t stop_at_ = 0;
  End stop_as_ = End::kill;
  std::uint64_t failures_ = 0;
  RunOutcome outcome_;
};

}  // namespace

RunOutcome run(const RunOptions& options) { return Run(options).run(); }

}  // namespace cairn::sim
