#include "blockmgr/transfer/transfer_table.hpp"

#include <array>
#include <charconv>
#include <iterator>
#include <string>
#include <utility>

#include "base/assert.hpp"

namespace cairn {
namespace {

// The names that clients see.
constexpr std::array<std::string_view, 5> kTransferStateNames = {"queued", "running", "done",
                                                                 "failed", "cancelled"};

Error unknown(TransferId id) {
  // In the form that users write: "t-" and hex digits.
  std::array<char, 16> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), id.value, 16).ptr;
  return {ErrorCode::unknown_transfer,
          std::string("there is no transfer t-").append(digits.data(), end)};
}

bool has_ended(TransferState state) {
  return state != TransferState::queued && state != TransferState::running;
}

}  // namespace

std::string_view to_string(TransferState state) {
  return kTransferStateNames[static_cast<std::size_t>(state)];
}

std::optional<TransferState> transfer_state_from(std::string_view word) {
  for (std::size_t i = 0; i < kTransferStateNames.size(); ++i) {
    if (kTransferStateNames[i] == word) return static_cast<TransferState>(i);
  }
  return std::nullopt;
}

Result<TransferId> TransferTable::open(Opening opening) {
  MutexLock lock(mutex_);
  if (counts_.queued + counts_.running >= options_.max_open) {
    return Error{ErrorCode::queue_full,
                 std::to_string(options_.max_open) + " transfers have not ended yet"};
  }
  const TransferId id{next_id_++};
  Record& record = records_[id];
  record.status.id = id;
  record.status.blocks_total = opening.blocks_total;
  record.status.cache = std::move(opening.cache);
  record.owner = std::move(opening.owner);
  ++counts_.queued;
  return id;
}

void TransferTable::begin(TransferId id) {
  MutexLock lock(mutex_);
  TransferStatus& status = records_.at(id).status;
  if (status.state != TransferState::queued) return;
  status.state = TransferState::running;
  --counts_.queued;
  ++counts_.running;
}

void TransferTable::add(TransferId id, Arrived arrived) {
  MutexLock lock(mutex_);
  TransferStatus& status = records_.at(id).status;
  status.blocks_done += arrived.blocks;
  status.bytes += arrived.bytes;
}

void TransferTable::add(TransferId id, TransferStatus::Failure failure) {
  MutexLock lock(mutex_);
  TransferStatus& status = records_.at(id).status;
  status.failures.push_back(std::move(failure));
  ++status.blocks_failed;
}

void TransferTable::set_total(TransferId id, std::uint64_t blocks_total) {
  MutexLock lock(mutex_);
  records_.at(id).status.blocks_total = blocks_total;
}

void TransferTable::set_error(TransferId id, Error error) {
  MutexLock lock(mutex_);
  records_.at(id).status.error = std::move(error);
}

void TransferTable::set_values(TransferId id, Numbers values) {
  MutexLock lock(mutex_);
  records_.at(id).status.values = std::move(values);
}

void TransferTable::set_agreed(TransferId id, std::uint64_t blocks) {
  MutexLock lock(mutex_);
  records_.at(id).status.agreed_blocks = blocks;
}

void TransferTable::set_layers_done(TransferId id, std::uint64_t layers) {
  MutexLock lock(mutex_);
  records_.at(id).status.layers_done = layers;
}

void TransferTable::withdraw(TransferId id) {
  MutexLock lock(mutex_);
  CAIRN_ASSERT(records_.at(id).status.state == TransferState::queued, "its end would be missed");
  records_.erase(id);
  --counts_.queued;
}

void TransferTable::end(TransferId id, TransferState state) {
  std::vector<Ended> watchers;
  TransferStatus last;
  {
    MutexLock lock(mutex_);
    Record& record = records_.at(id);
    CAIRN_ASSERT(!has_ended(record.status.state), "a transfer would end twice");
    --(record.status.state == TransferState::queued ? counts_.queued : counts_.running);
    record.status.state = state;
    watchers = std::move(record.watchers);
    last = record.status;
    kept_failures_ += record.status.failures.size();
    ended_.push_back(id);
    if (ended_.size() > options_.max_kept) forget(ended_.begin());
    for (auto oldest = ended_.begin();
         kept_failures_ > options_.max_kept_failures && *oldest != id;) {
      const bool failed = !records_.at(*oldest).status.failures.empty();
      oldest = failed ? forget(oldest) : std::next(oldest);
    }
  }
  for (Ended& ended : watchers) ended(last);
}

std::deque<TransferId>::iterator TransferTable::forget(std::deque<TransferId>::iterator at) {
  const auto record = records_.find(*at);
  kept_failures_ -= record->second.status.failures.size();
  records_.erase(record);
  return ended_.erase(at);
}

Result<TransferStatus> TransferTable::status(TransferId id) const {
  MutexLock lock(mutex_);
  const auto at = records_.find(id);
  if (at == records_.end()) return unknown(id);
  return at->second.status;
}

Result<TransferTable::Owner> TransferTable::owner(TransferId id) const {
  MutexLock lock(mutex_);
  const auto at = records_.find(id);
  if (at == records_.end()) return unknown(id);
  return at->second.owner;
}

Result<> TransferTable::watch(TransferId id, Ended ended) {
  TransferStatus last;
  {
    MutexLock lock(mutex_);
    const auto at = records_.find(id);
    if (at == records_.end()) return unknown(id);
    if (!has_ended(at->second.status.state)) {
      at->second.watchers.push_back(std::move(ended));
      return {};
    }
    last = at->second.status;
  }
  ended(last);
  return {};
}

TransferList TransferTable::list(const TransferListRequest& request) const {
  TransferList result;
  MutexLock lock(mutex_);
  for (auto at = records_.lower_bound(TransferId{request.cursor}); at != records_.end(); ++at) {
    const TransferSummary& status = at->second.status;
    if (request.state && status.state != *request.state) continue;
    if (request.cache && status.cache != *request.cache) continue;
    if (request.may_see && !request.may_see(status.cache)) continue;
    if (result.transfers.size() == request.limit) {
      result.next_cursor = status.id.value;
      break;
    }
    result.transfers.push_back(status);
  }
  return result;
}

TransferTable::Counts TransferTable::counts() const {
  MutexLock lock(mutex_);
  return counts_;
}

}  // namespace cairn
