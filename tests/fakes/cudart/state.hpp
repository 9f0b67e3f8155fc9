#pragma once

#include <driver_types.h>

#include <atomic>
#include <utility>

#include "tests/fakes/cudart/engine.hpp"
#include "tests/fakes/cudart/faults.hpp"
#include "tests/fakes/cudart/memory.hpp"
#include "tests/fakes/cudart/virtual_memory.hpp"

namespace cairn::fakes {

// The fake's machine.
struct State {
  State();
  int devices;        // CAIRN_FAKE_CUDA_DEVICES, or 2
  bool behind_a_bus;  // CAIRN_FAKE_CUDA_BEHIND_A_BUS; otherwise memory is coherent with the host's
  std::atomic<bool> concurrent_managed;  // false if CAIRN_FAKE_CUDA_NO_UNIFIED is set
  // CAIRN_FAKE_CUDA_FAIL=CALL:N:ERROR plans a failure in a program that does not know the fake. N
  // may be * for every call.
  Faults faults;
  Memory memory;
  VirtualMemory virtual_memory{memory};
  Engine engine;
};
State& state();

// The calling thread's state.
struct ThreadState {
  int device = 0;
  cudaError_t last_error = cudaSuccess;
};
ThreadState& thread_state();

// Returns a call's result, and keeps an error for cudaGetLastError().
inline cudaError_t answer(cudaError_t outcome) {
  if (outcome != cudaSuccess) thread_state().last_error = outcome;
  return outcome;
}

// Returns the error that broke the device, or cudaSuccess. Its work has ended by then, as in a
// context that CUDA has ended, so the caller may free the memory that the work used.
inline cudaError_t broken_and_still(int device) {
  const cudaError_t broken = state().faults.broken(device);
  if (broken != cudaSuccess) state().engine.settle(device);
  return broken;
}

// A call that a plan may fail, and that fails on a broken device.
template <class Body>
cudaError_t call(const char* name, int device, Body body) {
  Faults& faults = state().faults;
  const cudaError_t planned = faults.next(name);
  if (breaks_the_device(planned)) faults.break_device(device, planned);
  if (const cudaError_t broken = broken_and_still(device); broken != cudaSuccess) {
    return answer(broken);
  }
  return answer(planned != cudaSuccess ? planned : std::move(body)());
}

// A call that frees something. It frees even if it then returns an error, like CUDA's calls after
// errors of earlier, asynchronous work.
template <class Body>
cudaError_t release(const char* name, int device, Body body) {
  const cudaError_t outcome = body();
  return call(name, device, [outcome] { return outcome; });
}

}  // namespace cairn::fakes
