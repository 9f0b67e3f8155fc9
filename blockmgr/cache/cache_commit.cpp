// Cache: from bytes in a slot to a key.
#include <algorithm>
#include <cstring>
#include <set>
#include <string>

#include "base/hex.hpp"
#include "blockmgr/cache/cache_core.hpp"

namespace cairn {
namespace {

struct Commit {
  std::shared_ptr<CacheCore> core;
  LeaseId lease;
  std::vector<CommitBlock> blocks;
  std::vector<SlotRef> slots = {};  // of the blocks
  std::shared_ptr<BlockQuota> quota = {};
  Done<std::vector<CommitStatus>> done;
  CommitTerms terms = {};
  std::vector<SlotLabel> labels = {};   // of the blocks; empty without a disk tier
  std::vector<BlockKey> labelled = {};  // of the core's `labelling`, while it fills
  bool filling = false;                 // every slot has a pin more, and is marked
  std::uint32_t fills = 0;              // jobs under way
  std::optional<Error> error = {};      // of the first that failed
};
using CommitPtr = std::shared_ptr<Commit>;

Result<> check_block(const CacheCore& core, const CommitBlock& block) {
  const auto no_key = [](const BlockKey& key) { return key.view().size == 0; };
  if (no_key(block.key) || (block.parent && no_key(*block.parent))) {
    return Error{ErrorCode::out_of_range,
                 "a key of 0 bytes, not 1 to " + std::to_string(kMaxKeyBytes)};
  }
  CAIRN_TRY(core.check_metadata(block.metadata.size()));
  if (block.ttl_ms && (*block.ttl_ms < 1 || *block.ttl_ms > kMaxTtlMs)) {
    return Error{ErrorCode::out_of_range, "ttl_ms is " + std::to_string(*block.ttl_ms) +
                                              ", not 1 to " + std::to_string(kMaxTtlMs)};
  }
  if (block.priority && *block.priority > kMaxPriority) {
    return Error{ErrorCode::out_of_range, "priority is " + std::to_string(*block.priority) +
                                              ", not 0 to " + std::to_string(kMaxPriority)};
  }
  return {};
}

// `exists` where a key that must be new is there, or is named by a block before it.
Result<> check_new(Section& section, const Commit& commit) {
  const bool any = std::ranges::any_of(commit.blocks, &CommitBlock::refuse_duplicate);
  if (!any) return {};
  std::set<BlockKey, KeyOrder> before;
  for (const CommitBlock& block : commit.blocks) {
    const bool is_new = before.insert(block.key).second &&
                        section->store.find(block.key, section.now()) == kNoEntry;
    if (block.refuse_duplicate && !is_new) {
      return Error{ErrorCode::exists, "key " + to_hex(block.key.view().bytes()) +
                                          " is there already, and if_exists is error"};
    }
  }
  return {};
}

// Whether what is in an uncommitted slot was put there by a process that maps it, for all that is
// known.
bool may_be_in_place(Section& section, SlotRef at) {
  if (!section->mapped[index_of(at.tier())]) return false;
  const PieceProgress* const progress = section->writes.find(at);
  return progress == nullptr || !progress->any_written();
}

Error torn_piece(const CacheCore& core, SlotRef at, std::uint32_t piece) {
  const std::uint64_t outers = core.config.shape.outer_dim;
  return {ErrorCode::state_conflict,
          "slot " + std::to_string(at.slot()) + " of tier " + std::string(to_string(at.tier())) +
              ": a write of layer " + std::to_string(piece / outers) + ", outer " +
              std::to_string(piece % outers) +
              " ended before its last byte, and what was there is partly overwritten: write it "
              "again"};
}

// Checks every block before any changes, and finds their slots.
Result<LeaseNumber> check(Section& section, Commit& commit) {
  CacheCore& core = *commit.core;
  auto lease = section->leases.live(section, commit.lease);
  if (!lease) return lease;
  if (commit.blocks.size() > core.options().max_blocks_per_request) {
    return Error{ErrorCode::out_of_range,
                 std::to_string(commit.blocks.size()) + " blocks, not up to " +
                     std::to_string(core.options().max_blocks_per_request)};
  }
  for (const CommitBlock& block : commit.blocks) {
    CAIRN_TRY(check_block(core, block));
    auto at = section->leases.uncommitted(section, *lease, block.handle);
    if (!at) return std::move(at).error();
    if (const PieceProgress* const progress = section->writes.find(*at)) {
      if (progress->busy()) {
        return Error{ErrorCode::state_conflict,
                     "slot " + std::to_string(at->slot()) + " is being written"};
      }
      if (const auto torn = progress->first_torn()) return torn_piece(core, *at, *torn);
    }
    if (commit.terms.in_place == InPlaceWrites::forbidden && may_be_in_place(section, *at)) {
      return Error{ErrorCode::forbidden,
                   "slot " + std::to_string(at->slot()) + " of tier " +
                       std::string(to_string(at->tier())) +
                       " was not written over HTTP, and others map that tier: only who may map it "
                       "may commit what is in it"};
    }
    commit.slots.push_back(*at);
  }
  CAIRN_TRY(check_new(section, commit));
  commit.quota = section->leases[*lease].quota;
  std::vector<SlotRef> sorted = commit.slots;
  std::sort(sorted.begin(), sorted.end());
  if (const auto twice = std::adjacent_find(sorted.begin(), sorted.end()); twice != sorted.end()) {
    return Error{ErrorCode::state_conflict,
                 "slot " + std::to_string(twice->slot()) + " is named twice"};
  }
  return lease;
}

// Those who wait go on, after this one's answer.
void end_labelling(Section& section, Commit& commit) {
  for (const BlockKey& key : std::exchange(commit.labelled, {})) {
    for (auto& waiting : section->writes.give_up_key(key)) section.after(std::move(waiting));
  }
}

void give_up(Section& section, Commit& commit, Error error) {
  if (commit.filling) {
    for (SlotRef at : commit.slots) {
      section->store.record(at).committing = false;
      section->store.unpin(at);
    }
  }
  section.after([done = std::make_shared<Done<std::vector<CommitStatus>>>(std::move(commit.done)),
                 error = std::move(error)]() mutable { (*done)(std::move(error)); });
  end_labelling(section, commit);
}

// The keys become present, in order. The lease may have ended while the fills ran; what was asked
// for before its end is done all the same.
void publish(Section& section, Commit& commit) {
  // Once more: others may have committed a key while the fills ran.
  if (auto all_new = check_new(section, commit); !all_new) {
    return give_up(section, commit, std::move(all_new).error());
  }
  CacheCore& core = *commit.core;
  BlockStore& store = section->store;
  std::vector<SlotRef> given_up;
  std::vector<SlotRef> committed;
  std::vector<CommitStatus> statuses;
  for (std::size_t i = 0; i < commit.blocks.size(); ++i) {
    CommitBlock& block = commit.blocks[i];
    const SlotRef at = commit.slots[i];
    SlotRecord& slot = store.record(at);
    slot.committing = false;
    section->writes.erase(at);
    if (store.find(block.key, section.now()) != kNoEntry) {
      statuses.push_back(CommitStatus::duplicate);
      if (slot.leases > 0) given_up.push_back(at);
      continue;
    }
    NewBlock fresh{.key = block.key, .quota = commit.quota, .epoch = block.epoch};
    if (block.parent) fresh.parent = block.parent->view();
    fresh.metadata = std::move(block.metadata);
    if (block.ttl_ms) fresh.expires_at = section.now() + std::chrono::milliseconds(*block.ttl_ms);
    slot.gone = false;
    if (block.priority) slot.priority = *block.priority;
    store.commit(at, std::move(fresh));
    statuses.push_back(CommitStatus::committed);
    committed.push_back(at);
  }
  core.options().reached("commit.noted");
  section->counts.commits += committed.size();
  section->counts.duplicates += statuses.size() - committed.size();
  if (core.settings->offload == OffloadMode::on_commit)
    section->moves.write_through(section, committed);
  if (!given_up.empty()) {
    const auto lease = section->leases.find(commit.lease);
    CAIRN_ASSERT(lease.has_value(), "a leased slot outlived its lease");
    section->leases.remove(*lease, given_up);
    for (SlotRef at : given_up) store.unpin_for_lease(at);
  }
  if (commit.filling) {
    for (auto at = commit.slots.rbegin(); at != commit.slots.rend(); ++at) store.unpin(*at);
  }
  if (commit.terms.release) {
    const auto lease = section->leases.find(commit.lease);
    if (lease) section->leases.end(section, *lease, false);
  }
  section.after([done = std::make_shared<Done<std::vector<CommitStatus>>>(std::move(commit.done)),
                 statuses = std::move(statuses)]() mutable { (*done)(std::move(statuses)); });
  end_labelling(section, commit);
}

void fill_ended(const CommitPtr& commit, JobOutcome outcome) {
  commit->core->options().reached("commit.labelled");
  Section section(*commit->core);
  if (outcome.state != JobState::done && !commit->error) {
    commit->error = outcome.failures.empty()
                        ? Error{ErrorCode::cancelled, "the server is shutting down"}
                        : outcome.failures.front().error;
  }
  if (--commit->fills > 0) return;
  if (auto usable = section.check_usable(); !usable) commit->error = usable.error();
  if (commit->error) {
    give_up(section, *commit, *commit->error);
  } else {
    publish(section, *commit);
  }
}

// What nobody wrote.
struct Gaps {
  std::array<std::vector<SlotRef>, kNumTiers> blocks;  // nothing of them was written
  struct Piece {
    SlotRef at;
    std::uint32_t number = 0;
  };
  std::vector<Piece> pieces;        // of blocks that the CPU reaches
  std::vector<SlotRef> unlabelled;  // written ones of the disk tier

  bool any_job() const {
    return !unlabelled.empty() ||
           std::ranges::any_of(blocks, [](const auto& slots) { return !slots.empty(); });
  }
};

// A client knows what it commits only once the bytes are on disk; their headers follow here. Of a
// key that is there already the header stays nobody's: the block will not be kept. The same of one
// that this commit names before: a start that has lost the log could not tell which of two whole
// blocks was the one that stayed.
void make_labels(Section& section, Commit& commit) {
  CacheCore& core = *commit.core;
  if (!core.disk_slots) return;
  commit.labels.resize(commit.blocks.size());
  for (std::size_t i = 0; i < commit.blocks.size(); ++i) {
    const CommitBlock& block = commit.blocks[i];
    if (section->store.contains(block.key, section.now())) continue;
    if (!section->writes.take_key(block.key)) continue;
    commit.labelled.push_back(block.key);
    if (commit.slots[i].tier() != Tier::disk) continue;
    NewBlock fresh{.key = block.key, .metadata = block.metadata, .epoch = block.epoch};
    if (block.parent) fresh.parent = block.parent->view();
    if (block.ttl_ms) fresh.expires_at = section.now() + std::chrono::milliseconds(*block.ttl_ms);
    commit.labels[i] = label_of(section, commit.slots[i], fresh);
    if (block.priority) commit.labels[i].priority = *block.priority;
  }
}

Gaps find_gaps(Section& section, const Commit& commit) {
  Gaps gaps;
  for (SlotRef at : commit.slots) {
    if (may_be_in_place(section, at)) continue;
    const PieceProgress* const progress = section->writes.find(at);
    if (progress == nullptr || !progress->any_written()) {
      gaps.blocks[index_of(at.tier())].push_back(at);
      continue;
    }
    for (std::uint32_t piece : progress->missing()) gaps.pieces.push_back({at, piece});
    if (at.tier() == Tier::disk) gaps.unlabelled.push_back(at);
  }
  return gaps;
}

void fill_piece(const CacheCore& core, Gaps::Piece piece) {
  const BlockLayout& layout = core.layout(piece.at.tier());
  const Geometry& geometry = layout.geometry();
  const std::uint64_t outers = layout.config().outer_dim;
  std::memset(layout.address(geometry.locate({.block = piece.at.slot(),
                                              .layer = piece.number / outers,
                                              .outer = piece.number % outers})),
              0, geometry.piece_bytes());
}

// The labels of some of a commit's slots, which come in its order.
std::vector<SlotLabel> labels_of(const Commit& commit, std::span<const SlotRef> slots) {
  std::vector<SlotLabel> labels;
  for (std::size_t i = 0; labels.size() < slots.size(); ++i) {
    if (commit.slots[i] == slots[labels.size()]) labels.push_back(commit.labels[i]);
  }
  return labels;
}

void write_labels(const CommitPtr& commit, const std::vector<SlotRef>& slots) {
  TransferJob job;
  job.source = job.destination = &commit->core->layout(Tier::disk);
  job.operation = JobOperation::label;
  job.labels = labels_of(*commit, slots);
  for (SlotRef at : slots) job.pairs.push_back({at.slot(), at.slot()});
  commit->core->submit(
      std::move(job), [commit](JobOutcome outcome) { fill_ended(commit, std::move(outcome)); }, {});
}

// Runs without the lock; the slots are marked and pinned.
void fill(const CommitPtr& commit, const Gaps& gaps) {
  CacheCore& core = *commit->core;
  for (Gaps::Piece piece : gaps.pieces) fill_piece(core, piece);
  if (!gaps.unlabelled.empty()) write_labels(commit, gaps.unlabelled);
  const auto zeros = core.staging.zeros();
  for (Tier tier : kTiers) {
    const auto& slots = gaps.blocks[index_of(tier)];
    if (slots.empty()) continue;
    if (!zeros) {
      JobOutcome failed;
      failed.state = JobState::failed;
      failed.failures.push_back({0, zeros.error()});
      fill_ended(commit, std::move(failed));
      continue;
    }
    TransferJob job;
    job.source = *zeros;
    job.destination = &core.layout(tier);
    for (SlotRef at : slots) job.pairs.push_back({0, at.slot()});
    if (tier == Tier::disk) job.labels = labels_of(*commit, slots);
    core.submit(std::move(job),
                [commit](JobOutcome outcome) { fill_ended(commit, std::move(outcome)); }, {});
  }
}

// True where another commit is filling a block of the same key: this one goes on after it, so that
// the key whose header is written first is the one that stays.
bool waits_for_another(Section& section, const CommitPtr& commit, void (*go_on)(const CommitPtr&)) {
  return std::ranges::any_of(commit->blocks, [&](const CommitBlock& block) {
    return section->writes.wait_for_key(block.key, [commit, go_on] { go_on(commit); });
  });
}

void begin_commit(const CommitPtr& commit) {
  CacheCore& core = *commit->core;
  Section section(core);
  commit->slots.clear();
  if (auto checked = check(section, *commit); !checked) {
    return give_up(section, *commit, std::move(checked).error());
  }
  if (waits_for_another(section, commit, begin_commit)) return;
  Gaps gaps = find_gaps(section, *commit);
  if (!gaps.any_job() && gaps.pieces.empty()) return publish(section, *commit);
  for (const auto& slots : gaps.blocks) commit->fills += slots.empty() ? 0u : 1u;
  commit->fills += gaps.unlabelled.empty() ? 0u : 1u;
  make_labels(section, *commit);

  commit->filling = true;
  for (SlotRef at : commit->slots) {
    section->store.pin(at);
    section->store.record(at).committing = true;
  }
  ++commit->fills;  // of the pieces, and so that the last to end is none of the others
  section.after([commit, gaps = std::move(gaps)] {
    fill(commit, gaps);
    fill_ended(commit, {});
  });
}

}  // namespace

void Cache::commit(const LeaseId& lease, std::vector<CommitBlock> blocks,
                   Done<std::vector<CommitStatus>> done, CommitTerms terms) {
  begin_commit(std::make_shared<Commit>(Commit{.core = core_,
                                               .lease = lease,
                                               .blocks = std::move(blocks),
                                               .done = std::move(done),
                                               .terms = terms}));
}

}  // namespace cairn
