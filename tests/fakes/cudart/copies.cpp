// The part of libcudart that moves bytes. It checks each copy when it is issued and again when it
// runs: memory freed in between is an illegal address.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "tests/fakes/cudart/state.hpp"

namespace cairn::fakes {
namespace {

// The most copies of one call of cudaMemcpyBatchAsync.
constexpr std::size_t kMaxBatch = 4096;
// cudaDeviceProp::memPitch.
constexpr std::size_t kMaxPitch = 0x7FFF'FFFF;

struct Copy {
  void* destination;
  const void* source;
  std::size_t size_bytes;
};
struct Sides {
  Memory::Side destination;
  Memory::Side source;
};

// nullopt if a side crosses allocations or registrations, or the copying device cannot reach it.
std::optional<Sides> sides(const Copy& copy, int device) {
  const auto destination = state().memory.find(copy.destination, copy.size_bytes);
  const auto source = state().memory.find(copy.source, copy.size_bytes);
  if (!destination || !source || !destination->is_reached_by(device) ||
      !source->is_reached_by(device)) {
    return std::nullopt;
  }
  return Sides{*destination, *source};
}

bool is_host(Kind kind) { return kind == Kind::pageable || kind == Kind::registered; }

cudaError_t move_bytes(const Copy& copy, const Sides& issued, int device) {
  const auto now = sides(copy, device);
  if (!now || now->destination.kind != issued.destination.kind ||
      now->source.kind != issued.source.kind) {
    return cudaErrorIllegalAddress;
  }
  std::memcpy(now->destination.bytes, now->source.bytes, copy.size_bytes);
  return cudaSuccess;
}

cudaError_t issue(const Copy& copy, const Sides& where, cudaStream_t stream) {
  const int device = *state().engine.device_of(stream);
  const cudaError_t issued =
      state().engine.run(stream, [=] { return move_bytes(copy, where, device); });
  // Like in CUDA, copies of pageable memory and host to host block the caller.
  const bool blocks = where.destination.kind == Kind::pageable ||
                      where.source.kind == Kind::pageable ||
                      (is_host(where.destination.kind) && is_host(where.source.kind));
  if (issued != cudaSuccess || !blocks) return issued;
  const cudaError_t finished = state().engine.finish(stream);
  const cudaError_t broken = broken_and_still(device);
  return broken != cudaSuccess ? broken : finished;
}

bool destinations_overlap(std::vector<Copy> copies) {
  std::ranges::sort(copies, {}, &Copy::destination);
  for (std::size_t i = 1; i < copies.size(); ++i) {
    const auto* const end =
        static_cast<const std::byte*>(copies[i - 1].destination) + copies[i - 1].size_bytes;
    if (static_cast<const std::byte*>(copies[i].destination) < end) return true;
  }
  return false;
}

// Checks a batch as a whole. One operation runs its copies, in the fake's own order.
cudaError_t issue_batch(std::vector<Copy> copies, cudaStream_t stream) {
  if (destinations_overlap(copies)) return cudaErrorInvalidValue;
  const int device = *state().engine.device_of(stream);
  std::vector<std::pair<Copy, Sides>> resolved;
  for (const Copy& copy : copies) {
    const auto where = sides(copy, device);
    if (!where || copy.size_bytes == 0 || where->source.kind == Kind::pageable ||
        where->destination.kind == Kind::pageable) {
      return cudaErrorInvalidValue;
    }
    resolved.emplace_back(copy, *where);
  }
  return state().engine.run(stream, [resolved = std::move(resolved), device]() mutable {
    std::shuffle(resolved.begin(), resolved.end(), std::mt19937_64(resolved.size()));
    for (const auto& [copy, where] : resolved) {
      if (const cudaError_t moved = move_bytes(copy, where, device); moved != cudaSuccess)
        return moved;
    }
    return cudaSuccess;
  });
}

template <class Body>
cudaError_t on_stream(const char* name, cudaStream_t stream, Body body) {
  const std::optional<int> device = state().engine.device_of(stream);
  if (!device) return answer(cudaErrorInvalidResourceHandle);  // the NULL stream, too
  return call(name, *device, std::move(body));
}

}  // namespace
}  // namespace cairn::fakes

using namespace cairn::fakes;

extern "C" {

cudaError_t cudaMemcpyAsync(void* destination, const void* source, std::size_t size_bytes,
                            cudaMemcpyKind kind, cudaStream_t stream) {
  return on_stream("cudaMemcpyAsync", stream, [&] {
    const Copy copy{destination, source, size_bytes};
    const auto where = sides(copy, *state().engine.device_of(stream));
    if (!where || kind != cudaMemcpyDefault) return cudaErrorInvalidValue;
    // CUDA would copy through the host. The fake refuses, because the caller should know that there
    // are two devices.
    const bool two_devices = where->destination.kind == Kind::device &&
                             where->source.kind == Kind::device &&
                             where->destination.device != where->source.device;
    return two_devices ? cudaErrorInvalidValue : issue(copy, *where, stream);
  });
}

cudaError_t cudaMemcpyPeerAsync(void* destination, int destination_device, const void* source,
                                int source_device, std::size_t size_bytes, cudaStream_t stream) {
  return on_stream("cudaMemcpyPeerAsync", stream, [&] {
    const Copy copy{destination, source, size_bytes};
    const auto where = sides(copy, *state().engine.device_of(stream));
    if (!where || where->destination.kind != Kind::device || where->source.kind != Kind::device ||
        where->destination.device != destination_device || where->source.device != source_device) {
      return cudaErrorInvalidValue;
    }
    return issue(copy, *where, stream);
  });
}

cudaError_t cudaMemcpyBatchAsync(void* const* destinations, const void* const* sources,
                                 const std::size_t* sizes, std::size_t count,
                                 cudaMemcpyAttributes* attributes, std::size_t* attribute_starts,
                                 std::size_t attribute_count, cudaStream_t stream) {
  return on_stream("cudaMemcpyBatchAsync", stream, [&] {
    if (count == 0 || count > kMaxBatch || attribute_count == 0 || attribute_count > count ||
        attribute_starts[0] != 0) {
      return cudaErrorInvalidValue;
    }
    for (std::size_t i = 0; i < attribute_count; ++i) {
      if (attributes[i].srcAccessOrder != cudaMemcpySrcAccessOrderStream ||
          attributes[i].flags != cudaMemcpyFlagDefault || attribute_starts[i] >= count ||
          (i > 0 && attribute_starts[i] <= attribute_starts[i - 1])) {
        return cudaErrorInvalidValue;
      }
    }
    std::vector<Copy> copies;
    for (std::size_t i = 0; i < count; ++i) {
      copies.push_back({destinations[i], sources[i], sizes[i]});
    }
    return issue_batch(std::move(copies), stream);
  });
}

cudaError_t cudaMemcpy2DAsync(void* destination, std::size_t destination_pitch, const void* source,
                              std::size_t source_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream) {
  return on_stream("cudaMemcpy2DAsync", stream, [&] {
    if (kind != cudaMemcpyDefault || width == 0 || height == 0 || destination_pitch < width ||
        source_pitch < width || destination_pitch > kMaxPitch || source_pitch > kMaxPitch) {
      return cudaErrorInvalidValue;
    }
    // From the first byte to the last, including the gaps between the rows.
    const auto to = state().memory.find(destination, (height - 1) * destination_pitch + width);
    const auto from = state().memory.find(source, (height - 1) * source_pitch + width);
    if (!to || !from) return cudaErrorInvalidValue;
    std::vector<Copy> rows;
    for (std::size_t row = 0; row < height; ++row) {
      rows.push_back({static_cast<std::byte*>(destination) + row * destination_pitch,
                      static_cast<const std::byte*>(source) + row * source_pitch, width});
    }
    return issue_batch(std::move(rows), stream);
  });
}

cudaError_t cudaMemsetAsync(void* destination, int value, std::size_t size_bytes,
                            cudaStream_t stream) {
  return on_stream("cudaMemsetAsync", stream, [&] {
    const auto where = state().memory.find(destination, size_bytes);
    if (!where || where->kind == Kind::pageable) return cudaErrorInvalidValue;
    return state().engine.run(stream, [=, kind = where->kind] {
      const auto now = state().memory.find(destination, size_bytes);
      if (!now || now->kind != kind) return cudaErrorIllegalAddress;
      std::memset(now->bytes, value, size_bytes);
      return cudaSuccess;
    });
  });
}

cudaError_t cudaMemPrefetchAsync(const void* address, std::size_t size_bytes,
                                 cudaMemLocation location, unsigned int flags,
                                 cudaStream_t stream) {
  return on_stream("cudaMemPrefetchAsync", stream, [&] {
    const auto where = state().memory.find(address, size_bytes);
    const bool known = location.type == cudaMemLocationTypeHost ||
                       (location.type == cudaMemLocationTypeDevice && location.id >= 0 &&
                        location.id < state().devices);
    if (!where || where->kind != Kind::managed || flags != 0 || !known) {
      return cudaErrorInvalidValue;
    }
    return state().engine.run(stream, [] { return cudaSuccess; });
  });
}

}  // extern "C"
