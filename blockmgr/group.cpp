#include "blockmgr/group.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace cairn {
namespace {

const Error kLeft{ErrorCode::cancelled, "this rank has left the group"};

}  // namespace

Group::Group(const Parts& parts, const GroupJoin& request, std::unique_ptr<Invitation> invitation,
             Done<GroupInfo> joined)
    : parts_(parts),
      info_({.name = request.name,
             .place = request.place,
             .device_id = request.device_id,
             .unique_id = invitation ? invitation->unique_id() : request.unique_id,
             .collective = parts.collectives.name()}),
      thread_([this, ticket = std::move(invitation), answer = std::move(joined)]() mutable {
        run(std::move(ticket), std::move(answer));
      }) {}

Group::~Group() { leave(); }

void Group::run(std::unique_ptr<Invitation> invitation, Done<GroupInfo> joined) {
  const auto communicator = join(std::move(invitation), std::move(joined));
  if (communicator) work(*communicator);
}

std::unique_ptr<Communicator> Group::join(std::unique_ptr<Invitation> invitation,
                                          Done<GroupInfo> joined) {
  JoinRequest request;
  {
    MutexLock lock(mutex_);
    request.place = info_.place;
    request.device_id = info_.device_id;
    request.unique_id = info_.unique_id;
  }
  request.invitation = std::move(invitation);
  request.join_timeout = std::chrono::milliseconds(parts_.options.join_timeout_ms);
  request.step_timeout = std::chrono::milliseconds(parts_.options.step_timeout_ms);
  // Whoever comes first answers: the acceptance, or what goes wrong before it.
  bool answered = false;
  auto communicator = parts_.collectives.join(std::move(request), stop_, [&] {
    answered = true;
    joined(info());
  });
  if (!communicator) {
    const Error why = std::move(communicator).error();
    fail(why);
    if (!answered) {
      {
        MutexLock lock(mutex_);
        refused_ = true;
      }
      joined(why);
    }
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
  const ShareContext context{.communicator = communicator,
                             .packing = parts_.packing,
                             .transfers = parts_.transfers,
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
    ShareOutcome outcome = share_blocks(context, operation.request, operation.id);
    if (outcome.error) parts_.transfers.set_error(operation.id, *outcome.error);
    if (outcome.group_broken) broken = outcome.error;
    {
      // Before the transfer's end is told: who then looks sees the group as it is.
      MutexLock lock(mutex_);
      busy_ = false;
    }
    if (broken) fail(*broken);
    operation.request.cache.reset();
    parts_.transfers.end(operation.id, outcome.state);
  }
  MutexLock lock(mutex_);
  communicator_ = nullptr;
}

void Group::fail(const Error& why) {
  {
    MutexLock lock(mutex_);
    info_.state = GroupState::failed;
    info_.error = why;
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

Result<TransferId> Group::share(ShareRequest request) {
  MutexLock lock(mutex_);
  if (info_.state == GroupState::failed) {
    return Error{ErrorCode::unavailable, "group " + info_.name + " has failed, leave it and make " +
                                             "it anew: " + info_.error->detail};
  }
  if (leaving_) return kLeft;
  if (queue_.size() >= parts_.options.max_queued_operations) {
    return Error{ErrorCode::queue_full,
                 std::to_string(queue_.size()) + " operations wait in group " + info_.name};
  }
  auto id = parts_.transfers.open({}, request.keys.size());
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
