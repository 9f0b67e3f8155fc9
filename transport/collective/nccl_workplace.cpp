#include "transport/collective/nccl_workplace.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/pieces.hpp"

namespace cairn {
namespace {

// NCCL needs aligned buffers for wide loads.
constexpr std::uint64_t kAlignment = 512;
// Buffers grow in steps of one piece of a group transfer.
constexpr std::uint64_t kGrowthBytes = 8ull << 20;
// Smaller pieces are packed into pinned memory by the CPU; that is cheaper than one copy each.
constexpr std::uint64_t kWorthACopyBytes = 64ull << 10;

std::uint64_t aligned(std::uint64_t bytes) { return (bytes + kAlignment - 1) & ~(kAlignment - 1); }
std::uint64_t grown(std::uint64_t bytes) {
  return (bytes + kGrowthBytes - 1) / kGrowthBytes * kGrowthBytes;
}
std::byte* begin_of(const iovec& piece) { return static_cast<std::byte*>(piece.iov_base); }

}  // namespace

LeftBehind::LeftBehind() = default;
LeftBehind::~LeftBehind() = default;
void LeftBehind::take(std::unique_ptr<NcclWorkplace> place) {
  MutexLock lock(mutex_);
  places_.push_back(std::move(place));
}

Result<std::unique_ptr<NcclWorkplace>> NcclWorkplace::open(const NcclGround& ground,
                                                           int device_id) {
  auto stream = ground.runtime.create_stream(device_id);
  if (!stream) return std::move(stream).error();
  if ((*stream)->native() == nullptr) {
    return Error{ErrorCode::unavailable, "NCCL needs CUDA devices, which the " +
                                             std::string(ground.runtime.name()) +
                                             " runtime does not have"};
  }
  return std::unique_ptr<NcclWorkplace>(new NcclWorkplace(ground, device_id, std::move(*stream)));
}

NcclWorkplace::NcclWorkplace(const NcclGround& ground, int device_id,
                             std::unique_ptr<Stream> stream)
    : runtime_(ground.runtime),
      memory_(ground.memory),
      device_id_(device_id),
      stream_(std::move(stream)),
      reductions_(ground.reductions.at(device_id)) {}

NcclWorkplace::~NcclWorkplace() {
  // Buffers must be freed before end_stream(), which ends the stream that uses them.
  transit_.reset();
  reductions_.clear();
  memory_.end_stream(device_id_, std::move(stream_));
}

bool NcclWorkplace::on_device(const iovec& piece) const {
  return !is_host_memory(runtime_.at(begin_of(piece)).kind);
}

bool NcclWorkplace::is_worth_a_copy(const iovec& piece) const {
  const StorageKind kind = runtime_.at(begin_of(piece)).kind;
  if (!is_host_memory(kind)) return true;
  // The driver may block on a copy from unpinned memory, without limit.
  return kind == StorageKind::pinned && piece.iov_len >= kWorthACopyBytes;
}

std::size_t NcclWorkplace::add(std::span<const iovec> pieces, Way way, std::uint64_t cut_bytes) {
  const std::size_t before = parts_.size();
  Part part{.way = way};
  for (iovec rest : pieces) {
    while (rest.iov_len > 0) {
      const std::uint64_t room = cut_bytes == 0 ? rest.iov_len : cut_bytes - part.size_bytes;
      const std::uint64_t size = std::min<std::uint64_t>(rest.iov_len, room);
      part.pieces.push_back({rest.iov_base, size});
      part.size_bytes += size;
      rest = {begin_of(rest) + size, rest.iov_len - size};
      if (part.size_bytes == cut_bytes) add_part(std::exchange(part, {.way = way}));
    }
  }
  // A call with no bytes still needs an address.
  if (part.size_bytes > 0 || parts_.size() == before) add_part(std::move(part));
  return before;
}

void NcclWorkplace::add_part(Part part) {
  if (part.pieces.size() == 1) {
    const auto where = runtime_.at(begin_of(part.pieces.front()));
    part.direct = where.kind == StorageKind::device && where.device_id == device_id_;
    if (part.direct) part.data = begin_of(part.pieces.front());
  }
  parts_.push_back(std::move(part));
}

void NcclWorkplace::add_at(std::byte* buffer, std::span<const iovec> pieces, Way way) {
  parts_.push_back({.pieces = {pieces.begin(), pieces.end()},
                    .way = way,
                    .size_bytes = total_bytes(pieces),
                    .data = buffer});
}

Result<> NcclWorkplace::reserve(std::uint64_t device_bytes, std::uint64_t bounce_bytes) {
  if (device_bytes > transit_.size_bytes()) {
    transit_.reset();
    auto made = memory_.allocate(device_id_, grown(device_bytes), *stream_);
    if (!made) return std::move(made).error();
    transit_ = std::move(*made);
  }
  if (bounce_bytes > 0 && (!bounce_ || bounce_bytes > bounce_->size_bytes())) {
    bounce_.reset();
    auto made = runtime_.allocate_pinned(grown(bounce_bytes),
                                         {.numa_aware = true, .device_id = device_id_});
    if (!made) return std::move(made).error();
    bounce_.emplace(std::move(*made));
  }
  return {};
}

Result<> NcclWorkplace::go_up() {
  std::uint64_t device_bytes = 0;
  std::uint64_t bounce_bytes = 0;
  for (Part& part : parts_) {
    if (part.direct) continue;
    part.bounce_offset = bounce_bytes;
    bounce_bytes += part.size_bytes;
    if (part.data == nullptr) device_bytes += aligned(std::max<std::uint64_t>(part.size_bytes, 1));
  }
  CAIRN_TRY(reserve(device_bytes, bounce_bytes));
  copies_.clear();
  std::byte* next = transit_.data();
  for (Part& part : parts_) {
    if (part.direct) continue;
    if (part.data == nullptr) {
      part.data = next;
      next += aligned(std::max<std::uint64_t>(part.size_bytes, 1));
    }
    if (!part.way.up) continue;
    std::byte* to = part.data;
    std::byte* packed = part.size_bytes == 0 ? nullptr : bounce_->data() + part.bounce_offset;
    for (const iovec& piece : part.pieces) {
      if (piece.iov_len == 0) continue;
      const bool as_it_lies = is_worth_a_copy(piece);
      if (!as_it_lies) std::memcpy(packed, piece.iov_base, piece.iov_len);
      copies_.push_back({to, as_it_lies ? begin_of(piece) : packed, piece.iov_len});
      to += piece.iov_len;
      packed += piece.iov_len;
    }
  }
  return stream_->copy(copies_);
}

Result<bool> NcclWorkplace::go_down() {
  copies_.clear();
  for (const Part& part : parts_) {
    if (part.direct || !part.way.down) continue;
    std::byte* from = part.data;
    std::byte* packed = part.size_bytes == 0 ? nullptr : bounce_->data() + part.bounce_offset;
    for (const iovec& piece : part.pieces) {
      if (piece.iov_len == 0) continue;
      copies_.push_back({on_device(piece) ? begin_of(piece) : packed, from, piece.iov_len});
      from += piece.iov_len;
      packed += piece.iov_len;
    }
  }
  if (copies_.empty()) return false;
  CAIRN_TRY(stream_->copy(copies_));
  return true;
}

void NcclWorkplace::deliver() {
  for (const Part& part : parts_) {
    if (part.direct || !part.way.down || part.size_bytes == 0) continue;
    const std::byte* from = bounce_->data() + part.bounce_offset;
    for (const iovec& piece : part.pieces) {
      if (piece.iov_len > 0 && !on_device(piece)) {
        std::memcpy(piece.iov_base, from, piece.iov_len);
      }
      from += piece.iov_len;
    }
  }
  reductions_.rest();
}

Result<std::byte*> NcclWorkplace::reduction_buffer(const Communicator::AllReduce& call) {
  const std::uint64_t size_bytes = std::max(call.elements.size_bytes(), kAlignment);
  // It records no stream: a call waits for its stream, and a workplace ends when its stream is
  // idle.
  const auto make = [this](std::uint64_t bytes) { return memory_.allocate(device_id_, bytes); };
  auto buffer = reductions_.take(ReductionBuffers<DeviceBuffer>::Key::of(call), size_bytes, make);
  if (!buffer) return std::move(buffer).error();
  return (*buffer)->data();
}

}  // namespace cairn
