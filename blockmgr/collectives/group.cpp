#include "blockmgr/collectives/group.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace cairn {
namespace {

TransferOutcome outcome_of(TransferState ended) {
  switch (ended) {
    case TransferState::done:
      return TransferOutcome::done;
    case TransferState::cancelled:
      return TransferOutcome::cancelled;
    case TransferState::queued:
    case TransferState::running:
    case TransferState::failed:
      break;
  }
  return TransferOutcome::failed;
}

const Error kLeft{ErrorCode::cancelled, "this rank has left the group"};

}  // namespace

Group::Group(const Parts& parts, const GroupJoin& request, Done<GroupInfo> joined)
    : parts_(parts),
      info_({.name = request.name,
             .place = request.place,
             .device_id = request.device_id,
             .unique_id = request.unique_id,
             .collective = parts.kind}),
      thread_("group", [this, answer = std::move(joined)](const std::stop_token&) mutable {
        std::unique_ptr<Communicator> communicator;
        const bool went_on = guarded("group", [&] {
          communicator = join(std::move(answer));
          if (communicator) work(*communicator);
        });
        if (!went_on) give_up();
      }) {}

Group::~Group() { leave(); }

Result<std::unique_ptr<Communicator>> Group::meet(UniqueFunction<void()> accepted) {
  auto with = parts_.collectives();
  if (!with) return std::move(with).error();
  JoinRequest request;
  request.join_timeout = std::chrono::milliseconds(parts_.options.join_timeout_ms);
  request.step_timeout = std::chrono::milliseconds(parts_.options.step_timeout_ms);
  const RankPlace place = info().place;
  if (place.rank == 0) {
    auto invited = (*with)->invite(request.join_timeout, stop_);
    if (!invited) return std::move(invited).error();
    request.invitation = std::move(*invited);
    MutexLock lock(mutex_);
    info_.unique_id = request.invitation->unique_id();
  }
  {
    MutexLock lock(mutex_);
    request.place = info_.place;
    request.device_id = info_.device_id;
    request.unique_id = info_.unique_id;
  }
  return (*with)->join(std::move(request), stop_, std::move(accepted));
}

std::unique_ptr<Communicator> Group::join(Done<GroupInfo> joined) {
  // The first result is the answer: the acceptance, or an earlier error.
  bool answered = false;
  auto communicator = meet([&] {
    answered = true;
    joined(info());
  });
  if (!communicator) {
    const Error why = std::move(communicator).error();
    {
      MutexLock lock(mutex_);
      refused_ = !answered;
    }
    fail(why);
    if (!answered) joined(why);
    return nullptr;
  }
  {
    MutexLock lock(mutex_);
    info_.state = GroupState::ready;
    communicator_ = communicator->get();
    if (leaving_) communicator_->abort(kLeft);
    parts_.log.info("group formed", {{"group", info_.name},
                                     {"rank", info_.place.rank},
                                     {"world_size", info_.place.world_size}});
  }
  return std::move(*communicator);
}

void Group::work(Communicator& communicator) {
  const CollectiveContext context{.communicator = communicator,
                                  .packing = parts_.packing,
                                  .transfers = parts_.transfers,
                                  .counters = parts_.counters,
                                  .piece_bytes = parts_.options.piece_bytes,
                                  .lease_ms = parts_.lease_ms};
  std::optional<Error> broken;
  while (!broken) {
    Operation operation;
    {
      MutexLock lock(mutex_);
      while (queue_.empty() && !leaving_) changed_.wait(mutex_);
      if (leaving_) break;
      operation = std::move(queue_.front());
      queue_.pop_front();
      busy_ = true;
    }
    parts_.transfers.begin(operation.id);
    const TimePoint begin = parts_.clock.now();
    // If it throws, the ranks are out of step.
    CollectiveOutcome outcome{.state = TransferState::failed,
                              .error = Error{ErrorCode::internal, "there was no memory for it"},
                              .group_broken = true};
    const auto share =
        operation.request.kind == CollectiveKind::all_reduce ? &exchange_values : &exchange_blocks;
    guarded("group", [&] { outcome = share(context, operation.request, operation.id); });
    CollectiveCounters& counted = counters(operation.request.kind);
    counted.took(parts_.clock.now() - begin);
    counted.ended(outcome_of(outcome.state));
    if (outcome.error) parts_.transfers.set_error(operation.id, *outcome.error);
    if (outcome.group_broken) broken = outcome.error;
    {
      // Before the transfer's end is reported, so that its observers see the group's new state.
      MutexLock lock(mutex_);
      busy_ = false;
    }
    if (broken) fail(*broken);
    operation.request.cache.reset();
    operation.request.pins.reset();
    parts_.transfers.end(operation.id, outcome.state);
  }
  MutexLock lock(mutex_);
  communicator_ = nullptr;
}

void Group::give_up() {
  guarded("group", [this] {
    {
      MutexLock lock(mutex_);
      communicator_ = nullptr;
      busy_ = false;
    }
    fail({ErrorCode::internal, "an operation of the group ran out of memory"});
  });
}

void Group::fail(const Error& why) {
  {
    MutexLock lock(mutex_);
    info_.state = GroupState::failed;
    info_.error = why;
    // A refused join or a leave does not count as a failed group.
    if (!refused_ && why.code != ErrorCode::cancelled) ++parts_.failures;
    parts_.log.warning("group failed", {{"group", info_.name},
                                        {"rank", info_.place.rank},
                                        {"code", to_string(why.code)},
                                        {"why", why.detail}});
  }
  end_queue(TransferState::failed, why);
}

void Group::end_queue(TransferState state, const Error& why) {
  std::deque<Operation> ended;
  {
    MutexLock lock(mutex_);
    ended = std::exchange(queue_, {});
  }
  for (const Operation& operation : ended) {
    parts_.transfers.set_error(operation.id, why);
    if (state == TransferState::failed) {
      for (const BlockKey& key : operation.request.keys) {
        parts_.transfers.add(operation.id, TransferStatus::Failure{key, why});
      }
    }
    counters(operation.request.kind).ended(outcome_of(state));
    parts_.transfers.end(operation.id, state);
  }
}

GroupInfo Group::info() const {
  MutexLock lock(mutex_);
  GroupInfo info = info_;
  info.queued_operations = queue_.size() + (busy_ ? 1 : 0);
  return info;
}

bool Group::refused() const {
  MutexLock lock(mutex_);
  return refused_;
}

Result<TransferId> Group::share(CollectiveRequest request) {
  MutexLock lock(mutex_);
  if (info_.state == GroupState::failed) {
    return Error{ErrorCode::unavailable, "group " + info_.name + " has failed, leave it and make " +
                                             "it again: " + info_.error->detail};
  }
  if (leaving_) return kLeft;
  if (queue_.size() >= parts_.options.max_queued_operations) {
    return Error{ErrorCode::queue_full,
                 std::to_string(queue_.size()) + " operations wait in group " + info_.name};
  }
  if (request.cache && !request.cache->config().kv_groups.empty()) {
    return Error{ErrorCode::impossible, "cache " + request.cache->config().name +
                                            " has several KV groups; a group of servers exchanges "
                                            "blocks of caches with one"};
  }
  auto id = parts_.transfers.open({.blocks_total = request.keys.size()});
  if (!id) return id;
  queue_.push_back({.id = *id, .request = std::move(request)});
  changed_.notify_all();
  return id;
}

bool Group::cancel(TransferId id) {
  {
    MutexLock lock(mutex_);
    const auto at = std::find_if(queue_.begin(), queue_.end(),
                                 [id](const Operation& operation) { return operation.id == id; });
    if (at == queue_.end()) return false;
    counters(at->request.kind).ended(TransferOutcome::cancelled);
    queue_.erase(at);
  }
  parts_.transfers.end(id, TransferState::cancelled);
  return true;
}

void Group::leave() {
  {
    MutexLock lock(mutex_);
    leaving_ = true;
    stop_.stop();
    if (communicator_ != nullptr) communicator_->abort(kLeft);
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  end_queue(TransferState::cancelled, kLeft);
}

}  // namespace cairn
