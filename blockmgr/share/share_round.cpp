#include <map>

#include "blockmgr/cache/awaited.hpp"
#include "blockmgr/share/share_session.hpp"

namespace cairn {

std::vector<ShareSession::Parcel> ShareSession::parcels_of(const SharePlan& plan,
                                                           const Round& round) const {
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

void ShareSession::fill_room(Batch& batch, ShareRoom& room, std::vector<Parcel>& parcels) const {
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

Result<> ShareSession::move_round(Batch& batch, const SharePlan& plan, const Round& round) {
  std::vector<Parcel> parcels = parcels_of(plan, round);
  ShareRoom room(cache_, {.packing = context_.packing,
                          .device_memory = context_.communicator.takes_device_memory()});
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

Result<> ShareSession::transmit(std::vector<Parcel>& parcels) {
  if (request_.kind == ShareKind::broadcast) {
    const Parcel& parcel = parcels.front();
    return context_.communicator.broadcast({.root = members_[parcel.member],
                                            .pieces = parcel.pieces,
                                            .cut_bytes = cache_.block_bytes()});
  }
  using Message = Communicator::Message;
  std::vector<Message> messages;
  for (const Parcel& parcel : parcels) {
    messages.push_back({.kind = parcel.out ? Message::Kind::send : Message::Kind::receive,
                        .peer = members_[parcel.member],
                        .pieces = parcel.pieces,
                        .cut_bytes = cache_.block_bytes()});
  }
  if (messages.empty()) return {};
  return context_.communicator.exchange(messages);
}

// Stores and commits what was wanted and came whole.
void ShareSession::keep(Batch& batch, const SharePlan& plan, ShareRoom& room,
                        const Parcel& parcel) {
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

void ShareSession::commit(Batch& batch, const SharePlan& plan, const Round& keys) {
  std::vector<CommitBlock> blocks;
  for (std::size_t key : keys) {
    blocks.push_back({.handle = *batch.local[key].handle,
                      .key = key_of(batch, key),
                      .parent = plan.header(*plan.owner(key), key).parent});
  }
  Awaited<std::vector<CommitStatus>> answer;
  cache_.commit(batch.lease->id(), std::move(blocks), answer.done());
  const auto committed = answer.wait();
  if (!committed) {
    for (std::size_t key : keys) failed(batch.first + key, committed.error());
    return;
  }
  std::vector<KeyView> views;
  for (std::size_t key : keys) views.push_back(key_of(batch, key));
  // A duplicate's older block is under no lease of ours before this.
  const auto present = hold(views);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (present && (*present)[i]) {
      done(batch.first + keys[i], cache_.block_bytes());
    } else {
      failed(batch.first + keys[i],
             present ? Error{ErrorCode::no_capacity, "the block went while others were received"}
                     : present.error());
    }
  }
}

}  // namespace cairn
