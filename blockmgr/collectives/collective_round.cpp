#include <map>

#include "blockmgr/cache/awaited.hpp"
#include "blockmgr/collectives/collective_session.hpp"

namespace cairn {

std::vector<CollectiveSession::Message> CollectiveSession::messages_of(const CollectivePlan& plan,
                                                                       const Round& round) const {
  if (request_.kind == CollectiveKind::broadcast) {
    return {{.member = *owner_, .out = *owner_ == me_, .keys = round}};
  }
  std::vector<Message> messages;
  for (std::size_t member = 0; member < members_.size(); ++member) {
    if (member == me_) continue;
    Message out{.member = member, .out = true};
    Message in{.member = member, .out = false};
    for (std::size_t key : round) {
      if (plan.owner(key) == me_ && plan.wants(member, key)) out.keys.push_back(key);
      if (plan.owner(key) == member && plan.wants(me_, key)) in.keys.push_back(key);
    }
    if (!out.keys.empty()) messages.push_back(std::move(out));
    if (!in.keys.empty()) messages.push_back(std::move(in));
  }
  return messages;
}

void CollectiveSession::fill_room(Batch& batch, CollectiveMemory& room,
                                  std::vector<Message>& messages) const {
  std::map<std::size_t, std::size_t> sources;  // a block for many members is one source
  for (Message& message : messages) {
    for (std::size_t key : message.keys) {
      Local& local = batch.local[key];
      if (message.out) {
        auto [at, fresh] = sources.try_emplace(key, 0);
        if (fresh) at->second = room.add_source(*local.reader);
        message.blocks.push_back(at->second);
        continue;
      }
      if (local.slot) {
        if (auto opened = batch.ingest->open(*local.slot); !opened) {
          local.why_not = opened.error();
          local.slot.reset();
        }
      }
      message.blocks.push_back(local.slot ? room.add_target(*batch.ingest, *local.slot)
                                          : room.add_waste());
    }
  }
}

Result<> CollectiveSession::move_round(Batch& batch, const CollectivePlan& plan,
                                       const Round& round) {
  std::vector<Message> messages = messages_of(plan, round);
  CollectiveMemory room(cache_, {.packing = context_.packing,
                                 .device_memory = context_.communicator.takes_device_memory()});
  fill_room(batch, room, messages);
  CAIRN_TRY(room.open());
  std::map<std::size_t, BlockChecksum> checksums;
  for (Message& message : messages) {
    message.checksums.resize(message.keys.size());
    for (std::size_t i = 0; i < message.keys.size(); ++i) {
      const std::size_t block = message.blocks[i];
      if (message.out) {
        if (!checksums.contains(block)) checksums[block] = room.checksum(block);
        message.checksums[i] = checksums[block];
      }
      const auto pieces = room.pieces(block);
      message.pieces.insert(message.pieces.end(), pieces.begin(), pieces.end());
    }
    message.pieces.push_back(
        {message.checksums.data(), message.checksums.size() * sizeof(BlockChecksum)});
  }
  CAIRN_TRY(transmit(messages));
  CollectiveCounters& counters = context_.counters[static_cast<std::size_t>(request_.kind)];
  for (const Message& message : messages) {
    const CollectiveCounters::Blocks moved{
        .count = message.keys.size(), .size_bytes = message.keys.size() * cache_.block_bytes()};
    message.out ? counters.sent(moved) : counters.received(moved);
    if (!message.out) {
      keep(batch, plan, room, message);
      continue;
    }
    for (std::size_t i = 0; i < message.keys.size(); ++i) {
      const std::size_t key = batch.first + message.keys[i];
      if (const auto& error = room.error(message.blocks[i])) {
        failed(key, *error);
      } else {
        done(key, cache_.block_bytes());
      }
    }
  }
  // Unpins the blocks that were sent.
  for (std::size_t key : round) batch.local[key].reader.reset();
  return {};
}

Result<> CollectiveSession::transmit(std::vector<Message>& messages) {
  if (request_.kind == CollectiveKind::broadcast) {
    const Message& message = messages.front();
    return context_.communicator.broadcast({.root = members_[message.member],
                                            .pieces = message.pieces,
                                            .cut_bytes = cache_.block_bytes()});
  }
  std::vector<Communicator::Message> calls;
  for (const Message& message : messages) {
    using Kind = Communicator::Message::Kind;
    calls.push_back({.kind = message.out ? Kind::send : Kind::receive,
                     .peer = members_[message.member],
                     .pieces = message.pieces,
                     .cut_bytes = cache_.block_bytes()});
  }
  if (calls.empty()) return {};
  return context_.communicator.exchange(calls);
}

void CollectiveSession::keep(Batch& batch, const CollectivePlan& plan, CollectiveMemory& room,
                             const Message& message) {
  std::vector<std::size_t> targets;
  std::vector<BlockChecksum> checksums;
  for (std::size_t i = 0; i < message.keys.size(); ++i) {
    if (!batch.local[message.keys[i]].slot) continue;
    targets.push_back(message.blocks[i]);
    checksums.push_back(message.checksums[i]);
  }
  room.store(targets, checksums);
  Round whole;
  for (std::size_t i = 0; i < message.keys.size(); ++i) {
    const auto& slot = batch.local[message.keys[i]].slot;
    if (!slot) continue;
    if (const auto& error = room.error(message.blocks[i])) {
      batch.ingest->fail(*slot, *error);
      failed(batch.first + message.keys[i], *error);
    } else {
      whole.push_back(message.keys[i]);
    }
  }
  if (!whole.empty()) commit(batch, plan, whole);
}

void CollectiveSession::commit(Batch& batch, const CollectivePlan& plan, const Round& keys) {
  for (const std::size_t key : keys) {
    batch.ingest->block(*batch.local[key].slot).parent = plan.header(*plan.owner(key), key).parent;
  }
  Awaited<> answer;
  batch.ingest->commit(Ingest::Then::hold, answer.done());
  const auto committed = answer.wait();
  if (!committed) {
    for (std::size_t key : keys) failed(batch.first + key, committed.error());
    return;
  }
  std::vector<KeyView> views;
  for (std::size_t key : keys) views.push_back(key_of(batch, key));
  // Until now our lease did not cover the older block of a duplicate.
  const auto present = hold(views);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (present && (*present)[i]) {
      done(batch.first + keys[i], cache_.block_bytes());
    } else {
      failed(batch.first + keys[i],
             present
                 ? Error{ErrorCode::no_capacity, "the block was evicted while others were received"}
                 : present.error());
    }
  }
}

}  // namespace cairn
