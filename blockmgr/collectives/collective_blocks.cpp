#include "blockmgr/collectives/collective_blocks.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "blockmgr/cache/awaited.hpp"
#include "blockmgr/collectives/collective_session.hpp"

namespace cairn {
namespace {

// The slots of a batch are held while it runs. This takes a small part of a tier, but allows many
// pieces between two exchanges of headers.
constexpr std::uint64_t kCollectiveBatchBytes = 64ull << 20;
constexpr std::uint64_t kMaxBatchKeys = 1024;

template <class T>
std::byte* bytes_of(std::vector<T>& values) {
  return reinterpret_cast<std::byte*>(values.data());
}

}  // namespace

CollectiveSession::CollectiveSession(const CollectiveContext& context,
                                     const CollectiveRequest& request, TransferId id)
    : context_(context),
      request_(request),
      id_(id),
      cache_(*request.cache),
      tier_(request.tier.value_or(cache_.highest_tier())),
      reported_(request.keys.size()) {
  const bool pair = request.kind == CollectiveKind::send || request.kind == CollectiveKind::recv;
  for (std::uint32_t other = 0; other < context.communicator.place().world_size; ++other) {
    if (pair && other != rank() && other != request.other) continue;
    if (other == rank()) me_ = members_.size();
    if (other == request.other) owner_ = members_.size();
    members_.push_back(other);
  }
  if (request.kind == CollectiveKind::send) owner_ = me_;
  if (request.kind == CollectiveKind::all_gather) owner_.reset();
}

void CollectiveSession::done(std::size_t key, std::uint64_t bytes) {
  if (reported_[key]) return;
  reported_[key] = true;
  context_.transfers.add(id_, TransferTable::Arrived{.blocks = 1, .bytes = bytes});
}

void CollectiveSession::failed(std::size_t key, const Error& error) {
  if (reported_[key]) return;
  reported_[key] = true;
  any_failed_ = true;
  context_.transfers.add(id_, TransferStatus::Failure{request_.keys[key], error});
}

CollectiveOutcome CollectiveSession::run() {
  if (auto shared = exchange_all(); !shared) {
    for (std::size_t key = 0; key < reported_.size(); ++key) failed(key, shared.error());
    return {.state = TransferState::failed, .error = shared.error(), .group_broken = !refused_};
  }
  return {.state = any_failed_ ? TransferState::failed : TransferState::done};
}

// Returns every member's values, one member after the other.
template <class T>
Result<std::vector<T>> CollectiveSession::swap(std::vector<T> mine) {
  const std::size_t count = mine.size();
  const std::uint64_t size = count * sizeof(T);
  std::vector<T> all(members_.size() * count);
  if (request_.kind != CollectiveKind::send && request_.kind != CollectiveKind::recv) {
    CAIRN_TRY(context_.communicator.all_gather(
        {.source = bytes_of(mine), .destination = bytes_of(all), .elements = {.count = size}}));
    return all;
  }
  std::copy(mine.begin(), mine.end(), all.begin() + static_cast<std::ptrdiff_t>(me_ * count));
  const iovec out{bytes_of(mine), size};
  const iovec in{bytes_of(all) + (1 - me_) * size, size};
  const std::array<Communicator::Message, 2> messages = {
      {{.kind = Communicator::Message::Kind::send, .peer = request_.other, .pieces = {&out, 1}},
       {.kind = Communicator::Message::Kind::receive, .peer = request_.other, .pieces = {&in, 1}}}};
  CAIRN_TRY(context_.communicator.exchange(messages));
  return all;
}

Result<> CollectiveSession::exchange_all() {
  auto calls = swap(std::vector<CallHeader>{CallHeader::of(request_)});
  if (!calls) return std::move(calls).error();
  if (auto fit = check_calls(members_, *calls); !fit) {
    refused_ = true;
    return fit;
  }
  const std::uint64_t batch_keys =
      request_.kind == CollectiveKind::agree
          ? kMaxBatchKeys
          : std::clamp<std::uint64_t>(kCollectiveBatchBytes / cache_.block_bytes(), 1,
                                      kMaxBatchKeys);
  for (std::size_t first = 0; first < reported_.size();) {
    Batch batch{.first = first};
    batch.local.resize(std::min<std::size_t>(batch_keys, reported_.size() - first));
    first += batch.local.size();
    CAIRN_TRY(exchange_batch(batch));
  }
  if (request_.kind == CollectiveKind::agree) return agree();
  // No rank is done before all are.
  auto together = swap(std::vector<std::uint64_t>{reported_.size()});
  if (!together) return std::move(together).error();
  return {};
}

// Returns which keys are present. Those stay until the operation ends.
Result<std::vector<bool>> CollectiveSession::hold(std::span<const KeyView> keys) {
  std::optional<LeaseId> lease;
  if (kept_) lease = kept_.id();
  auto held = cache_.hold(keys, {.lease_ms = context_.lease_ms, .lease = lease});
  if (!held) return std::move(held).error();
  if (!kept_ && held->lease) kept_ = HeldLease(request_.cache, *held->lease);
  std::vector<bool> present;
  for (const auto& block : held->blocks) present.push_back(block.has_value());
  return present;
}

void CollectiveSession::look_up(Batch& batch) {
  std::vector<KeyView> views;
  for (std::size_t key = 0; key < batch.local.size(); ++key) views.push_back(key_of(batch, key));
  std::vector<bool> present(views.size(), true);
  if (takes()) {
    // Blocks that cannot be held count as missing.
    auto held = hold(views);
    present = held ? std::move(*held) : std::vector<bool>(views.size());
  }
  for (std::size_t key = 0; key < batch.local.size(); ++key) {
    if (!present[key]) continue;
    Local& local = batch.local[key];
    auto reader = cache_.read(key_of(batch, key), std::nullopt);
    local.held = reader.has_value();
    if (reader) local.reader.emplace(std::move(*reader));
  }
}

// Gets slots for as many of the first missing keys as there is room. The owner sends each block's
// parent.
void CollectiveSession::find_slots(Batch& batch) const {
  auto ingest = std::make_unique<Ingest>(request_.cache, Ingest::Terms{});
  std::vector<std::size_t> missing;
  for (std::size_t key = 0; key < batch.local.size(); ++key) {
    if (batch.local[key].held) continue;
    missing.push_back(key);
    ingest->add({.handle = {}, .key = key_of(batch, key)});
  }
  if (missing.empty()) return;
  Awaited<> granted;
  ingest->allocate({.tier = tier_, .room = Ingest::Room::some}, granted.done());
  static_cast<void>(granted.wait());  // each item has its own error
  for (std::size_t i = 0; i < missing.size(); ++i) {
    const Ingest::Item& item = ingest->items()[i];
    Local& local = batch.local[missing[i]];
    local.why_not = item.error;
    if (!item.error) local.slot = i;
  }
  batch.ingest = std::move(ingest);
}

Result<std::vector<KeyHeader>> CollectiveSession::swap_headers(const Batch& batch) {
  std::vector<KeyMessage> mine;
  for (std::size_t key = 0; key < batch.local.size(); ++key) {
    const Local& local = batch.local[key];
    KeyHeader header{.key = key_of(batch, key)};
    if (local.held) {
      header.holding = KeyHeader::Holding::held;
      header.parent = cache_.parent(header.key);
    } else if (local.slot) {
      header.holding = KeyHeader::Holding::wanted;
    }
    mine.push_back(encode(header));
  }
  const auto all = swap(std::move(mine));
  if (!all) return all.error();
  return decode(members_, *all);
}

Result<> CollectiveSession::exchange_batch(Batch& batch) {
  const bool moves_blocks = request_.kind != CollectiveKind::agree;
  if (moves_blocks) look_up(batch);
  if (moves_blocks && takes()) find_slots(batch);
  const auto headers = swap_headers(batch);
  if (!headers) return headers.error();
  const CollectivePlan plan(*headers, members_.size(), owner_);
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
  report_the_rest(batch, plan);
  return {};
}

// Reports the keys that did not have to move, or could not.
void CollectiveSession::report_the_rest(const Batch& batch, const CollectivePlan& plan) {
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

// Finds the longest prefix held here, and the shortest of those over all ranks.
Result<> CollectiveSession::agree() {
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

CollectiveOutcome exchange_blocks(const CollectiveContext& context,
                                  const CollectiveRequest& request, TransferId id) {
  return CollectiveSession(context, request, id).run();
}

}  // namespace cairn
