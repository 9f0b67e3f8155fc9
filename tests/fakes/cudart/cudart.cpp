// The part of libcudart for devices, memory, streams and events. It is compiled with NVIDIA's
// header, so a function with a wrong signature does not link.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>

#include "tests/fakes/cudart/state.hpp"

namespace cairn::fakes {

State::State() : engine(faults) {
  const char* const wanted = std::getenv("CAIRN_FAKE_CUDA_DEVICES");
  devices = wanted == nullptr ? 2 : std::atoi(wanted);
  behind_a_bus = std::getenv("CAIRN_FAKE_CUDA_BEHIND_A_BUS") != nullptr;
  concurrent_managed = std::getenv("CAIRN_FAKE_CUDA_NO_UNIFIED") == nullptr;
  const char* const failing = std::getenv("CAIRN_FAKE_CUDA_FAIL");
  if (failing == nullptr) return;
  const std::string text(failing);
  const std::size_t n = text.find(':');
  const std::size_t error = text.find(':', n + 1);
  if (n == std::string::npos || error == std::string::npos) {
    std::fputs("CAIRN_FAKE_CUDA_FAIL is not CALL:N:ERROR\n", stderr);
    std::abort();
  }
  faults.plan(
      {.call = text.substr(0, n),
       .n = text[n + 1] == '*' ? Faults::kEvery : std::strtoull(text.c_str() + n + 1, nullptr, 10),
       .error = static_cast<cudaError_t>(std::atoi(text.c_str() + error + 1))});
}

// Never destroyed: leaked streams are threads that keep using it.
State& state() {
  static State& only = *new State;
  return only;
}

ThreadState& thread_state() {
  thread_local ThreadState mine;
  return mine;
}

namespace {

// For calls that name a device.
template <class Body>
cudaError_t on_device(const char* name, int device, Body body) {
  if (device < 0 || device >= state().devices) return answer(cudaErrorInvalidDevice);
  return call(name, device, std::move(body));
}

// For calls with a stream or event, which belongs to a device. Refuses the NULL stream: it waits
// for all others, and all others wait for it.
template <class Handle, class Body>
cudaError_t on_device_of(const char* name, Handle handle, Body body) {
  const std::optional<int> device = state().engine.device_of(handle);
  if (!device) return answer(cudaErrorInvalidResourceHandle);
  return call(name, *device, std::move(body));
}

}  // namespace
}  // namespace cairn::fakes

using cairn::fakes::answer;
using cairn::fakes::broken_and_still;
using cairn::fakes::call;
using cairn::fakes::Kind;
using cairn::fakes::on_device;
using cairn::fakes::on_device_of;
using cairn::fakes::release;
using cairn::fakes::state;
using cairn::fakes::thread_state;

extern "C" {

cudaError_t cudaGetLastError() { return std::exchange(thread_state().last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return thread_state().last_error; }

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorECCUncorrectable:
      return "cudaErrorECCUncorrectable";
    default:
      return "cudaError of the fake";
  }
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    case cudaErrorECCUncorrectable:
      return "uncorrectable ECC error encountered";
    default:
      return "an error of the fake without words of its own";
  }
}

cudaError_t cudaGetDeviceCount(int* count) {
  return call("cudaGetDeviceCount", -1, [&] {
    *count = state().devices;
    return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
  });
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return on_device("cudaGetDeviceProperties", device, [&] {
    *properties = {};
    std::snprintf(properties->name, sizeof properties->name, "fake GPU %d", device);
    properties->totalGlobalMem = cairn::fakes::device_bytes();
    properties->uuid.bytes[0] = static_cast<char>(0xFA);
    properties->uuid.bytes[15] = static_cast<char>(device);
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return on_device("cudaDeviceGetAttribute", device, [&] {
    switch (attribute) {
      case cudaDevAttrConcurrentManagedAccess:
        *value = state().concurrent_managed ? 1 : 0;
        return cudaSuccess;
      case cudaDevAttrCanUseHostPointerForRegisteredMem:
        *value = 1;
        return cudaSuccess;
      case cudaDevAttrIntegrated:
        *value = 0;
        return cudaSuccess;
      case cudaDevAttrPageableMemoryAccess:
      case cudaDevAttrPageableMemoryAccessUsesHostPageTables:
        *value = state().behind_a_bus ? 0 : 1;
        return cudaSuccess;
      case cudaDevAttrMultiProcessorCount:
        *value = 3;
        return cudaSuccess;
      default:
        return cudaErrorNotSupported;
    }
  });
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int size, int device) {
  return on_device("cudaDeviceGetPCIBusId", device, [&] {
    // A domain that no machine has, so that sysfs does not know it.
    const int length = std::snprintf(id, static_cast<std::size_t>(size), "FFFF:%02X:00.0", device);
    return length < size ? cudaSuccess : cudaErrorInvalidValue;
  });
}
cudaError_t cudaSetDevice(int device) {
  return on_device("cudaSetDevice", device, [&] {
    thread_state().device = device;
    return cudaSuccess;
  });
}
cudaError_t cudaSetDeviceFlags(unsigned int flags) {
  return call("cudaSetDeviceFlags", thread_state().device, [&] {
    return flags == cudaDeviceScheduleBlockingSync ? cudaSuccess : cudaErrorInvalidValue;
  });
}
cudaError_t cudaDeviceSynchronize() {
  const int device = thread_state().device;
  return call("cudaDeviceSynchronize", device, [&] {
    state().engine.finish_device(device);
    return broken_and_still(device);
  });
}
cudaError_t cudaDeviceCanAccessPeer(int* possible, int device, int peer) {
  return on_device("cudaDeviceCanAccessPeer", device, [&] {
    *possible = peer != device;
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags) {
  return call("cudaDeviceEnablePeerAccess", thread_state().device, [&] {
    return peer != thread_state().device && flags == 0 ? cudaSuccess : cudaErrorInvalidValue;
  });
}

cudaError_t cudaMalloc(void** address, std::size_t size_bytes) {
  const int device = thread_state().device;
  return call("cudaMalloc", device,
              [&] { return state().memory.allocate(Kind::device, device, size_bytes, address); });
}
cudaError_t cudaMallocManaged(void** address, std::size_t size_bytes, unsigned int flags) {
  const int device = thread_state().device;
  return call("cudaMallocManaged", device, [&] {
    if (flags != cudaMemAttachGlobal) return cudaErrorInvalidValue;
    return state().memory.allocate(Kind::managed, device, size_bytes, address);
  });
}
// Unlike CUDA's, it does not wait: memory freed during a copy is an illegal address.
cudaError_t cudaFree(void* address) {
  return release("cudaFree", thread_state().device, [&] { return state().memory.free(address); });
}
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* address) {
  return call("cudaIpcGetMemHandle", thread_state().device,
              [&] { return state().memory.export_block(address, handle); });
}
cudaError_t cudaIpcOpenMemHandle(void** address, cudaIpcMemHandle_t handle, unsigned int flags) {
  const int device = thread_state().device;
  return call("cudaIpcOpenMemHandle", device, [&] {
    if (flags != cudaIpcMemLazyEnablePeerAccess) return cudaErrorInvalidValue;
    return state().memory.open_block(handle, device, address);
  });
}
cudaError_t cudaIpcCloseMemHandle(void* address) {
  return release("cudaIpcCloseMemHandle", thread_state().device,
                 [&] { return state().memory.free(address); });
}
cudaError_t cudaHostRegister(void* address, std::size_t size_bytes, unsigned int flags) {
  return call("cudaHostRegister", thread_state().device, [&] {
    if (flags != (cudaHostRegisterPortable | cudaHostRegisterMapped)) return cudaErrorInvalidValue;
    return state().memory.add_registration(address, size_bytes);
  });
}
cudaError_t cudaHostUnregister(void* address) {
  return release("cudaHostUnregister", thread_state().device,
                 [&] { return state().memory.remove_registration(address); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  const int device = thread_state().device;
  return call("cudaStreamCreateWithFlags", device, [&] {
    if (flags != cudaStreamNonBlocking) return cudaErrorInvalidValue;
    *stream = state().engine.create_stream(device);
    return cudaSuccess;
  });
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const std::optional<int> device = state().engine.device_of(stream);
  if (!device) return answer(cudaErrorInvalidResourceHandle);
  return release("cudaStreamDestroy", *device,
                 [&] { return state().engine.destroy_stream(stream); });
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return on_device_of("cudaStreamSynchronize", stream, [&] {
    const int device = *state().engine.device_of(stream);
    const cudaError_t finished = state().engine.finish(stream);
    const cudaError_t broken = broken_and_still(device);
    return broken != cudaSuccess ? broken : finished;
  });
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return on_device_of("cudaStreamQuery", stream, [&] { return state().engine.query(stream); });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
  return on_device_of("cudaStreamWaitEvent", stream, [&] {
    return flags == 0 ? state().engine.wait_for(stream, event) : cudaErrorInvalidValue;
  });
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  return on_device_of("cudaLaunchHostFunc", stream, [&] {
    return state().engine.run_on_host(stream, [=] { function(argument); });
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  const int device = thread_state().device;
  return call("cudaEventCreateWithFlags", device, [&] {
    if (flags != cudaEventDisableTiming) return cudaErrorInvalidValue;
    *event = state().engine.create_event(device);
    return cudaSuccess;
  });
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return on_device_of("cudaEventRecord", stream,
                      [&] { return state().engine.record(event, stream); });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return on_device_of("cudaEventQuery", event, [&] {
    const int device = *state().engine.device_of(event);
    const cudaError_t outcome = state().engine.query(event);
    // Work that broke the device has failed.
    const cudaError_t broken = broken_and_still(device);
    return broken != cudaSuccess ? broken : outcome;
  });
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const std::optional<int> device = state().engine.device_of(event);
  if (!device) return answer(cudaErrorInvalidResourceHandle);
  return release("cudaEventDestroy", *device, [&] { return state().engine.destroy_event(event); });
}

}  // extern "C"
