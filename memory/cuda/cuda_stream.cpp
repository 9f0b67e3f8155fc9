#include "memory/cuda/cuda_stream.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/assert.hpp"
#include "memory/cuda/copy_kernel.hpp"
#include "memory/cuda/cuda_event.hpp"

namespace cairn {
namespace {

// Starting a batch costs about as much as two copies, and each of its pieces a quarter of one.
constexpr std::size_t kWorthABatch = 4;
// The limit of one call.
constexpr std::size_t kMaxBatch = 4096;
static_assert(kWorthABatch <= kMaxBatch);
// Fewer rows cost less as pieces of a batch.
constexpr std::uint64_t kWorthRows = 4;

}  // namespace

Result<std::unique_ptr<CudaStream>> CudaStream::create(std::shared_ptr<CudaContext> context,
                                                       int device_id) {
  CudaDevice& device = *context->devices[static_cast<std::size_t>(device_id)];
  CAIRN_TRY(device.enter());
  cudaStream_t stream = nullptr;
  CAIRN_TRY(device.check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                         {"cudaStreamCreateWithFlags", "make a stream"}));
  return std::unique_ptr<CudaStream>(new CudaStream(std::move(context), device_id, stream));
}

CudaStream::CudaStream(std::shared_ptr<CudaContext> context, int device_id, cudaStream_t stream)
    : context_(std::move(context)),
      device_(*context_->devices[static_cast<std::size_t>(device_id)]),
      device_id_(device_id),
      stream_(stream) {}

CudaStream::~CudaStream() {
  device_.drain(stream_);
  device_.check_release(cudaStreamDestroy(stream_), {"cudaStreamDestroy", "end a stream"});
}

// A launch carries its pieces, and the driver reads the lists of the other forms before the call
// returns: no list has to outlive the call.
Result<> CudaStream::copy(std::span<const MemoryCopy> copies, CopyForm form,
                          const RegionView& /*list*/) {
  plan_.clear();
  CAIRN_TRY(plan_.add(copies, context_->addresses, device_id_));
  CAIRN_TRY(device_.enter());
  // First the part that does not block: the rest then runs beside it.
  CAIRN_TRY(copy_directly(form));
  for (const CudaCopyPlan::Peer& peer : plan_.peer) {
    rely_on(*context_->devices[static_cast<std::size_t>(peer.destination_device)]);
    rely_on(*context_->devices[static_cast<std::size_t>(peer.source_device)]);
    CAIRN_TRY(device_.check(
        cudaMemcpyPeerAsync(peer.copy.destination, peer.destination_device, peer.copy.source,
                            peer.source_device, peer.copy.size_bytes, stream_),
        {"cudaMemcpyPeerAsync", "copy from device to device", peer.copy.size_bytes}));
  }
  for (const MemoryCopy& copy : plan_.single) CAIRN_TRY(copy_one(copy));
  return {};
}

Result<> CudaStream::copy_directly(CopyForm form) {
  switch (form) {
    case CopyForm::loop:
      for (const MemoryCopy& copy : plan_.batch) CAIRN_TRY(copy_one(copy));
      return {};
    case CopyForm::batch:
      return copy_many(plan_.batch);
    case CopyForm::rows:
      return copy_rows();
    case CopyForm::kernel:
      if (!has_copy_kernel() || !device_.maps_pinned_memory()) return copy_many(plan_.batch);
      return copy_by_kernel(plan_.batch);
  }
  invariant_broken("CopyForm", "a value outside the enumeration");
}

Result<> CudaStream::copy_many(std::span<const MemoryCopy> copies) {
  if (copies.size() < kWorthABatch) {
    for (const MemoryCopy& copy : copies) CAIRN_TRY(copy_one(copy));
    return {};
  }
  while (!copies.empty()) {
    const std::size_t count = std::min(copies.size(), kMaxBatch);
    CAIRN_TRY(copy_batch(copies.first(count)));
    copies = copies.subspan(count);
  }
  return {};
}

Result<> CudaStream::copy_rows() {
  const std::vector<StridedCopy> runs = find_strided_runs(plan_.batch);
  std::vector<MemoryCopy> pieces;  // from runs that are not worth a call or cannot be one
  for (const StridedCopy& run : runs) {
    if (run.rows < kWorthRows || !lies_in_one_piece(run)) {
      for (std::uint64_t row = 0; row < run.rows; ++row) pieces.push_back(run.row(row));
      continue;
    }
    CAIRN_TRY(device_.check(cudaMemcpy2DAsync(run.destination, run.destination_pitch_bytes,
                                              run.source, run.source_pitch_bytes, run.row_bytes,
                                              run.rows, cudaMemcpyDefault, stream_),
                            {"cudaMemcpy2DAsync", "copy rows", run.rows * run.row_bytes}));
  }
  return copy_many(pieces);
}

// A call may not cross registrations, and CUDA does not define two sides whose rows interleave.
bool CudaStream::lies_in_one_piece(const StridedCopy& run) const {
  CudaAddressMap::Reader addresses(context_->addresses);
  const std::uint64_t source_bytes = run.source_extent_bytes();
  const std::uint64_t destination_bytes = run.destination_extent_bytes();
  if (addresses.at(run.source).reach_bytes < source_bytes ||
      addresses.at(run.destination).reach_bytes < destination_bytes) {
    return false;
  }
  const auto source = reinterpret_cast<std::uintptr_t>(run.source);
  const auto destination = reinterpret_cast<std::uintptr_t>(run.destination);
  return source < destination ? destination - source >= source_bytes
                              : source - destination >= destination_bytes;
}

Result<> CudaStream::copy_by_kernel(std::span<const MemoryCopy> copies) {
  const CopyReach reach{.crosses_bus = crosses_bus(copies),
                        .multiprocessors = device_.multiprocessors()};
  while (!copies.empty()) {
    const auto pieces = copies.first(std::min(copies.size(), kLargeCopyTable));
    CAIRN_TRY(device_.check(launch_copy_kernel(pieces, plan_copy_launch(pieces, reach), stream_),
                            {"cudaLaunchKernel", "copy pieces by a kernel"}));
    copies = copies.subspan(pieces.size());
  }
  return {};
}

bool CudaStream::crosses_bus(std::span<const MemoryCopy> copies) const {
  CudaAddressMap::Reader addresses(context_->addresses);
  return std::ranges::any_of(copies, [&](const MemoryCopy& copy) {
    return addresses.at(copy.source).kind != StorageKind::device ||
           addresses.at(copy.destination).kind != StorageKind::device;
  });
}

Result<> CudaStream::copy_one(const MemoryCopy& copy) {
  return device_.check(
      cudaMemcpyAsync(copy.destination, copy.source, copy.size_bytes, cudaMemcpyDefault, stream_),
      {"cudaMemcpyAsync", "copy", copy.size_bytes});
}

Result<> CudaStream::copy_batch(std::span<const MemoryCopy> copies) {
  destinations_.clear();
  sources_.clear();
  sizes_.clear();
  std::uint64_t total_bytes = 0;
  for (const MemoryCopy& copy : copies) {
    destinations_.push_back(copy.destination);
    sources_.push_back(copy.source);
    sizes_.push_back(copy.size_bytes);
    total_bytes += copy.size_bytes;
  }
  // Earlier work on this stream may still be writing the sources.
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  std::size_t first_of_attributes = 0;
  return device_.check(
      cudaMemcpyBatchAsync(destinations_.data(), sources_.data(), sizes_.data(), copies.size(),
                           &attributes, &first_of_attributes, 1, stream_),
      {"cudaMemcpyBatchAsync", "copy many pieces", total_bytes});
}

Result<> CudaStream::zero(std::byte* destination, std::uint64_t size_bytes) {
  if (size_bytes == 0) return {};
  if (destination == nullptr) {
    return Error{ErrorCode::device_error,
                 "zeros for " + std::to_string(size_bytes) + " bytes have no destination"};
  }
  CAIRN_TRY(device_.enter());
  while (size_bytes > 0) {
    const CudaAddressMap::Extent there =
        CudaAddressMap::Reader(context_->addresses).at(destination);
    if (size_bytes > there.to_range_end_bytes) {
      return Error{ErrorCode::device_error, "zeros for " + std::to_string(size_bytes) +
                                                " bytes run past the end of their memory"};
    }
    if (there.kind == StorageKind::system) return zero_pageable(destination, size_bytes);
    const std::uint64_t piece_bytes = std::min(size_bytes, there.reach_bytes);
    CAIRN_TRY(device_.check(cudaMemsetAsync(destination, 0, piece_bytes, stream_),
                            {"cudaMemsetAsync", "fill with zeros", piece_bytes}));
    destination += piece_bytes;
    size_bytes -= piece_bytes;
  }
  return {};
}

// The device cannot access pageable memory: this thread fills it, in its turn.
Result<> CudaStream::zero_pageable(std::byte* destination, std::uint64_t size_bytes) {
  CAIRN_TRY(device_.check(cudaStreamSynchronize(stream_),
                          {"cudaStreamSynchronize", "fill pageable memory with zeros"}));
  std::memset(destination, 0, size_bytes);
  return {};
}

Result<> CudaStream::prefetch(const RegionView& unified, int device_id) {
  if (unified.kind() != StorageKind::unified) {
    return Error{ErrorCode::device_error, "only unified memory can be prefetched; this is " +
                                              std::string(to_string(unified.kind()))};
  }
  const auto& devices = context_->devices;
  if (device_id < -1 || device_id >= static_cast<int>(devices.size()) ||
      (device_id >= 0 && devices[static_cast<std::size_t>(device_id)] == nullptr)) {
    return Error{ErrorCode::out_of_range,
                 "there is no device " + std::to_string(device_id) + " to prefetch to"};
  }
  CAIRN_TRY(device_.enter());
  const CudaDevice& target =
      device_id == -1 ? device_ : *devices[static_cast<std::size_t>(device_id)];
  if (unified.size_bytes() == 0 || !device_.concurrent_managed_access() ||
      !target.concurrent_managed_access()) {
    return {};
  }
  const cudaMemLocation location =
      device_id == -1 ? cudaMemLocation{.type = cudaMemLocationTypeHost, .id = 0}
                      : cudaMemLocation{.type = cudaMemLocationTypeDevice, .id = device_id};
  return device_.check(
      cudaMemPrefetchAsync(unified.data(), unified.size_bytes(), location, 0, stream_),
      {"cudaMemPrefetchAsync", "move unified memory", unified.size_bytes()});
}

void CudaStream::rely_on(CudaDevice& device) {
  MutexLock lock(mutex_);
  if (&device == &device_ || std::ranges::count(relies_on_, &device) > 0) return;
  relies_on_.push_back(&device);
}

// The driver's own wait: the thread sleeps in it until the device interrupts.
Result<> CudaStream::synchronize() {
  CAIRN_TRY(device_.enter());
  CAIRN_TRY(device_.check(cudaStreamSynchronize(stream_),
                          {"cudaStreamSynchronize", "wait for all work of a stream"}));
  MutexLock lock(mutex_);
  for (CudaDevice* other : relies_on_) CAIRN_TRY(other->probe());
  return {};
}

Result<std::unique_ptr<Event>> CudaStream::record() {
  std::vector<CudaDevice*> relies_on;
  {
    MutexLock lock(mutex_);
    relies_on = relies_on_;
  }
  auto event = CudaEvent::record(context_, {device_, stream_, std::move(relies_on)});
  if (!event) return std::move(event).error();
  return std::unique_ptr<Event>(std::move(*event));
}

Result<> CudaStream::wait_for(Event& event) {
  const auto* const cuda_event = dynamic_cast<const CudaEvent*>(&event);
  if (cuda_event == nullptr) {
    return Error{ErrorCode::device_error, "the event is of another runtime"};
  }
  if (cuda_event->known_reached()) return {};
  CAIRN_TRY(device_.enter());
  rely_on(cuda_event->device());
  for (CudaDevice* other : cuda_event->relies_on()) rely_on(*other);
  return device_.check(cudaStreamWaitEvent(stream_, cuda_event->handle(), 0),
                       {"cudaStreamWaitEvent", "wait for another stream"});
}

}  // namespace cairn
