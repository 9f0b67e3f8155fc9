#include "blockmgr/share_blocks.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <string>

#include "blockmgr/awaited.hpp"
#include "blockmgr/share_cards.hpp"
#include "blockmgr/share_room.hpp"

namespace cairn {
namespace {

// A batch's slots are held while it runs: little of a tier at once, and still many pieces between
// two exchanges of cards.
constexpr std::uint64_t kBatchBytes = 64ull << 20;
constexpr std::uint64_t kMaxBatchKeys = 1024;

template <class T>
std::byte* bytes_of(std::vector<T>& values) {
  return reinterpret_cast<std::byte*>(values.data());
}

// A lease of this server's own, given back with it.
class HeldLease {
 public:
  HeldLease(Cache& cache, const LeaseId& id) : cache_(cache), id_(id) {}
  ~HeldLease() {
    // It may have run out, or the cache may be gone: then nothing is held either.
    static_cast<void>(cache_.release(id_, {}));
  }
  HeldLease(const HeldLease&) = delete;
  HeldLease& operator=(const HeldLease&) = delete;
  const LeaseId& id() const { return id_; }

 private:
  Cache& cache_;
  const LeaseId id_;
};

class Sharing {
 public:
  Sharing(const ShareContext& context, const ShareRequest& request, TransferId id);
  ShareOutcome run();

 private:
  // This rank's side of a key of the batch.
  struct Local {
    bool held = false;
    std::optional<BlockReader> reader = {};  // held: pinned, so that making room leaves it
    std::optional<BlockHandle> handle = {};  // a slot waits for it
    std::optional<BlockWriter> writer = {};
    std::optional<Error> why_not = {};  // there is no slot, or it cannot be written
  };
  struct Batch {
    std::size_t first = 0;                // of the request's keys
    std::optional<HeldLease> lease = {};  // outlives the writers
    std::vector<Local> local = {};
  };
  using Round = std::vector<std::size_t>;  // keys of the batch, rising
  // A message of a round: the blocks to or from one member, and their seals.
  struct Parcel {
    std::size_t member = 0;
    bool out = false;
    Round keys = {};
    std::vector<std::size_t> blocks = {};  // of the room
    std::vector<BlockSeal> seals = {};
    std::vector<iovec> pieces = {};
  };

  std::uint32_t rank() const { return context_.communicator.place().rank; }
  bool takes() const { return !owner_ || *owner_ != me_; }
  const BlockKey& key_of(const Batch& batch, std::size_t key) const {
    return request_.keys[batch.first + key];
  }
  template <class T>
  Result<std::vector<T>> swap(std::vector<T> mine);
  Result<> share_all();
  Result<> share_batch(Batch& batch);
  void look_up(Batch& batch) const;
  void find_slots(Batch& batch) const;
  Result<std::vector<KeyCard>> swap_cards(const Batch& batch);
  Result<> move_round(Batch& batch, const SharePlan& plan, const Round& round);
  std::vector<Parcel> parcels_of(const SharePlan& plan, const Round& round) const;
  void fill_room(Batch& batch, ShareRoom& room, std::vector<Parcel>& parcels) const;
  Result<> transmit(std::vector<Parcel>& parcels);
  void keep(Batch& batch, const SharePlan& plan, ShareRoom& room, const Parcel& parcel);
  void commit(Batch& batch, const SharePlan& plan, const Round& keys);
  void tell_the_rest(const Batch& batch, const SharePlan& plan);
  Result<> agree();

  // Each key is told of once.
  void done(std::size_t key, std::uint64_t bytes);
  void failed(std::size_t key, const Error& error);

  const ShareContext& context_;
  const ShareRequest& request_;
  const TransferId id_;
  Cache& cache_;
  const Tier tier_;
  Members members_;
  std::size_t me_ = 0;                // among the members
  std::optional<std::size_t> owner_;  // the only one that gives, where there is one
  std::vector<bool> told_;
  bool any_failed_ = false;
  bool refused_ = false;  // by every rank alike: the group goes on
};

Sharing::Sharing(const ShareContext& context, const ShareRequest& request, TransferId id)
    : context_(context),
      request_(request),
      id_(id),
      cache_(*request.cache),
      tier_(request.tier.value_or(cache_.highest_tier())),
      told_(request.keys.size()) {
  const bool pair = request.kind == ShareKind::send || request.kind == ShareKind::recv;
  for (std::uint32_t other = 0; other < context.communicator.place().world_size; ++other) {
    if (pair && other != rank() && other != request.other) continue;
    if (other == rank()) me_ = members_.size();
    if (other == request.other) owner_ = members_.size();
    members_.push_back(other);
  }
  if (request.kind == ShareKind::send) owner_ = me_;
  if (request.kind == ShareKind::all_gather) owner_.reset();
}

void Sharing::done(std::size_t key, std::uint64_t bytes) {
  if (told_[key]) return;
  told_[key] = true;
  context_.transfers.add(id_, TransferTable::Arrived{.blocks = 1, .bytes = bytes});
}

void Sharing::failed(std::size_t key, const Error& error) {
  if (told_[key]) return;
  told_[key] = true;
  any_failed_ = true;
  context_.transfers.add(id_, TransferStatus::Failure{request_.keys[key], error});
}

ShareOutcome Sharing::run() {
  if (auto shared = share_all(); !shared) {
    for (std::size_t key = 0; key < told_.size(); ++key) failed(key, shared.error());
    return {.state = TransferState::failed, .error = shared.error(), .group_broken = !refused_};
  }
  return {.state = any_failed_ ? TransferState::failed : TransferState::done};
}

// Every member's values end to end.
template <class T>
Result<std::vector<T>> Sharing::swap(std::vector<T> mine) {
  const std::size_t count = mine.size();
  const std::uint64_t size = count * sizeof(T);
  std::vector<T> all(members_.size() * count);
  if (request_.kind != ShareKind::send && request_.kind != ShareKind::recv) {
    CAIRN_TRY(context_.communicator.all_gather(
        {.source = bytes_of(mine), .destination = bytes_of(all), .elements = {.count = size}}));
    return all;
  }
  std::copy(mine.begin(), mine.end(), all.begin() + static_cast<std::ptrdiff_t>(me_ * count));
  const iovec out{bytes_of(mine), size};
  const iovec in{bytes_of(all) + (1 - me_) * size, size};
  using Message = Communicator::Message;
  const std::array<Message, 2> messages = {
      {{.kind = Message::Kind::send, .peer = request_.other, .pieces = {&out, 1}},
       {.kind = Message::Kind::receive, .peer = request_.other, .pieces = {&in, 1}}}};
  CAIRN_TRY(context_.communicator.exchange(messages));
  return all;
}

Result<> Sharing::share_all() {
  auto calls = swap(std::vector<CallCard>{CallCard::of(request_)});
  if (!calls) return std::move(calls).error();
  if (auto fit = check_calls(members_, *calls); !fit) {
    refused_ = true;
    return fit;
  }
  const std::uint64_t batch_keys =
      request_.kind == ShareKind::agree
          ? kMaxBatchKeys
          : std::clamp<std::uint64_t>(kBatchBytes / cache_.block_bytes(), 1, kMaxBatchKeys);
  for (std::size_t first = 0; first < told_.size();) {
    Batch batch{.first = first};
    batch.local.resize(std::min<std::size_t>(batch_keys, told_.size() - first));
    first += batch.local.size();
    CAIRN_TRY(share_batch(batch));
  }
  if (request_.kind == ShareKind::agree) return agree();
  // Nobody is done before all are.
  auto together = swap(std::vector<std::uint64_t>{told_.size()});
  if (!together) return std::move(together).error();
  return {};
}

void Sharing::look_up(Batch& batch) const {
  for (std::size_t key = 0; key < batch.local.size(); ++key) {
    Local& local = batch.local[key];
    auto reader = cache_.read(key_of(batch, key), std::nullopt);
    local.held = reader.has_value();
    if (reader) local.reader.emplace(std::move(*reader));
  }
}

// For as many of the first missing keys as there is room.
void Sharing::find_slots(Batch& batch) const {
  std::vector<std::size_t> missing;
  for (std::size_t key = 0; key < batch.local.size(); ++key) {
    if (!batch.local[key].held) missing.push_back(key);
  }
  std::optional<Error> why_not;
  std::vector<BlockHandle> handles;
  for (std::size_t count = missing.size(); count > 0 && handles.empty(); count /= 2) {
    Awaited<Allocation> answer;
    cache_.allocate(
        {.count = static_cast<std::uint32_t>(count), .tier = tier_, .lease_ms = context_.lease_ms},
        answer.done());
    auto allocation = answer.wait();
    if (allocation) {
      batch.lease.emplace(cache_, allocation->lease);
      handles = std::move(allocation->blocks);
    } else {
      why_not = allocation.error();
    }
  }
  for (std::size_t i = 0; i < missing.size(); ++i) {
    Local& local = batch.local[missing[i]];
    if (i < handles.size()) {
      local.handle = handles[i];
    } else {
      local.why_not = why_not;
    }
  }
}

Result<std::vector<KeyCard>> Sharing::swap_cards(const Batch& batch) {
  std::vector<KeyCard> cards(batch.local.size());
  for (std::size_t key = 0; key < cards.size(); ++key) {
    const Local& local = batch.local[key];
    cards[key].set_key(key_of(batch, key));
    if (local.held) {
      cards[key].holding = KeyCard::Holding::held;
      const auto parent = cache_.parent(key_of(batch, key));
      if (parent) cards[key].set_parent(*parent);
    } else if (local.handle) {
      cards[key].holding = KeyCard::Holding::wanted;
    }
  }
  return swap(std::move(cards));
}

Result<> Sharing::share_batch(Batch& batch) {
  const bool moves_blocks = request_.kind != ShareKind::agree;
  if (moves_blocks) look_up(batch);
  if (moves_blocks && takes()) find_slots(batch);
  const auto cards = swap_cards(batch);
  if (!cards) return cards.error();
  const SharePlan plan(*cards, members_.size(), owner_);
  if (auto same = plan.check_keys(members_); !same) {
    refused_ = true;
    return same;
  }
  if (!moves_blocks) return {};
  Round round;
  for (std::size_t key = 0; key < batch.local.size(); ++key) {
    if (plan.moves(key)) round.push_back(key);
    const bool last = key + 1 == batch.local.size();
    if (round.empty() || (!last && round.size() * cache_.block_bytes() < context_.piece_bytes)) {
      continue;
    }
    CAIRN_TRY(move_round(batch, plan, round));
    round.clear();
  }
  tell_the_rest(batch, plan);
  return {};
}

// What did not have to move, or could not.
void Sharing::tell_the_rest(const Batch& batch, const SharePlan& plan) {
  for (std::size_t key = 0; key < batch.local.size(); ++key) {
    const Local& local = batch.local[key];
    if (local.held) {
      done(batch.first + key, 0);
    } else if (!plan.owner(key)) {
      failed(batch.first + key,
             {ErrorCode::unknown_key,
              owner_ ? "rank " + std::to_string(members_[*owner_]) + " does not hold it"
                     : "no rank holds it"});
    } else {
      failed(batch.first + key,
             local.why_not.value_or(Error{ErrorCode::internal, "the block was not sent"}));
    }
  }
}

std::vector<Sharing::Parcel> Sharing::parcels_of(const SharePlan& plan, const Round& round) const {
  if (request_.kind == ShareKind::broadcast) {
    return {{.member = *owner_, .out = *owner_ == me_, .keys = round}};
  }
  std::vector<Parcel> parcels;
  for (std::size_t member = 0; member < members_.size(); ++member) {
    if (member == me_) continue;
    Parcel out{.member = member, .out = true};
    Parcel in{.member = member, .out = false};
    for (std::size_t key : round) {
      if (plan.owner(key) == me_ && plan.wants(member, key)) out.keys.push_back(key);
      if (plan.owner(key) == member && plan.wants(me_, key)) in.keys.push_back(key);
    }
    if (!out.keys.empty()) parcels.push_back(std::move(out));
    if (!in.keys.empty()) parcels.push_back(std::move(in));
  }
  return parcels;
}

void Sharing::fill_room(Batch& batch, ShareRoom& room, std::vector<Parcel>& parcels) const {
  std::map<std::size_t, std::size_t> sources;  // a block that goes to many is one
  for (Parcel& parcel : parcels) {
    for (std::size_t key : parcel.keys) {
      Local& local = batch.local[key];
      if (parcel.out) {
        auto [at, fresh] = sources.try_emplace(key, 0);
        if (fresh) at->second = room.add_source(*local.reader);
        parcel.blocks.push_back(at->second);
        continue;
      }
      if (local.handle) {
        auto writer = cache_.write({.lease = batch.lease->id(), .block = *local.handle});
        if (writer) {
          local.writer.emplace(std::move(*writer));
        } else {
          local.why_not = writer.error();
        }
      }
      parcel.blocks.push_back(local.writer ? room.add_target(*local.writer, *local.handle)
                                           : room.add_waste());
    }
  }
}

Result<> Sharing::move_round(Batch& batch, const SharePlan& plan, const Round& round) {
  std::vector<Parcel> parcels = parcels_of(plan, round);
  ShareRoom room(cache_, context_.packing);
  fill_room(batch, room, parcels);
  CAIRN_TRY(room.open());
  std::map<std::size_t, BlockSeal> seals;
  for (Parcel& parcel : parcels) {
    parcel.seals.resize(parcel.keys.size());
    for (std::size_t i = 0; i < parcel.keys.size(); ++i) {
      const std::size_t block = parcel.blocks[i];
      if (parcel.out) {
        if (!seals.contains(block)) seals[block] = room.seal(block);
        parcel.seals[i] = seals[block];
      }
      const auto pieces = room.pieces(block);
      parcel.pieces.insert(parcel.pieces.end(), pieces.begin(), pieces.end());
    }
    parcel.pieces.push_back({parcel.seals.data(), parcel.seals.size() * sizeof(BlockSeal)});
  }
  CAIRN_TRY(transmit(parcels));
  ShareCounters& counters = context_.counters[static_cast<std::size_t>(request_.kind)];
  for (const Parcel& parcel : parcels) {
    const ShareCounters::Blocks moved{.count = parcel.keys.size(),
                                      .size_bytes = parcel.keys.size() * cache_.block_bytes()};
    parcel.out ? counters.sent(moved) : counters.received(moved);
    if (!parcel.out) {
      keep(batch, plan, room, parcel);
      continue;
    }
    for (std::size_t i = 0; i < parcel.keys.size(); ++i) {
      const std::size_t key = batch.first + parcel.keys[i];
      if (const auto& error = room.error(parcel.blocks[i])) {
        failed(key, *error);
      } else {
        done(key, cache_.block_bytes());
      }
    }
  }
  // The pins of what was given.
  for (std::size_t key : round) batch.local[key].reader.reset();
  return {};
}

Result<> Sharing::transmit(std::vector<Parcel>& parcels) {
  if (request_.kind == ShareKind::broadcast) {
    const Parcel& parcel = parcels.front();
    return context_.communicator.broadcast(
        {.root = members_[parcel.member], .pieces = parcel.pieces});
  }
  using Message = Communicator::Message;
  std::vector<Message> messages;
  for (const Parcel& parcel : parcels) {
    messages.push_back({.kind = parcel.out ? Message::Kind::send : Message::Kind::receive,
                        .peer = members_[parcel.member],
                        .pieces = parcel.pieces});
  }
  if (messages.empty()) return {};
  return context_.communicator.exchange(messages);
}

// Stores and commits what was wanted and came whole.
void Sharing::keep(Batch& batch, const SharePlan& plan, ShareRoom& room, const Parcel& parcel) {
  std::vector<std::size_t> targets;
  std::vector<BlockSeal> seals;
  for (std::size_t i = 0; i < parcel.keys.size(); ++i) {
    if (!batch.local[parcel.keys[i]].writer) continue;
    targets.push_back(parcel.blocks[i]);
    seals.push_back(parcel.seals[i]);
  }
  room.store(targets, seals);
  Round whole;
  for (std::size_t i = 0; i < parcel.keys.size(); ++i) {
    Local& local = batch.local[parcel.keys[i]];
    if (!local.writer) continue;
    local.writer.reset();
    if (const auto& error = room.error(parcel.blocks[i])) {
      failed(batch.first + parcel.keys[i], *error);
    } else {
      whole.push_back(parcel.keys[i]);
    }
  }
  if (!whole.empty()) commit(batch, plan, whole);
}

void Sharing::commit(Batch& batch, const SharePlan& plan, const Round& keys) {
  std::vector<CommitBlock> blocks;
  for (std::size_t key : keys) {
    blocks.push_back({.handle = *batch.local[key].handle,
                      .key = key_of(batch, key),
                      .parent = plan.card(*plan.owner(key), key).parent_key()});
  }
  Awaited<std::vector<CommitStatus>> answer;
  cache_.commit(batch.lease->id(), std::move(blocks), answer.done());
  const auto committed = answer.wait();
  for (std::size_t key : keys) {
    if (committed) {
      done(batch.first + key, cache_.block_bytes());
    } else {
      failed(batch.first + key, committed.error());
    }
  }
}

// The longest prefix that is held here, and the shortest of all ranks' of those.
Result<> Sharing::agree() {
  std::vector<KeyView> views(request_.keys.begin(), request_.keys.end());
  const std::vector<bool> held = cache_.contains(views);
  std::uint64_t prefix =
      static_cast<std::uint64_t>(std::find(held.begin(), held.end(), false) - held.begin());
  auto* const bytes = reinterpret_cast<std::byte*>(&prefix);
  CAIRN_TRY(context_.communicator.all_reduce({.source = bytes,
                                              .destination = bytes,
                                              .elements = {.count = 1, .type = DataType::uint64},
                                              .reduction = Reduction::min}));
  context_.transfers.add(id_, TransferTable::Arrived{.blocks = prefix});
  context_.transfers.set_agreed(id_, prefix);
  return {};
}

}  // namespace

ShareOutcome share_blocks(const ShareContext& context, const ShareRequest& request, TransferId id) {
  return Sharing(context, request, id).run();
}

}  // namespace cairn
