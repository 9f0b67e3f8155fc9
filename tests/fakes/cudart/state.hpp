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
  bool behind_a_bus;  // CAIRN_FAKE_CUDA_BEHIND_A_BUS; else memory is coherent with the host's
  std::atomic<bool> concurrent_managed;  // not where CAIRN_FAKE_CUDA_NO_UNIFIED is set
  // CAIRN_FAKE_CUDA_FAIL=CALL:N:ERROR (N may be *, for every call) plans a failure in a program
  // that does not know the fake.
  Faults faults;
  Memory memory;
  VirtualMemory virtual_memory{memory};
  Engine engine;
};
State& state();

// The calling thread's.
struct ThreadState {
  int device = 0;
  cudaError_t last_error = cudaSuccess;
};
ThreadState& thread_state();

// What a call answers, kept for cudaGetLastError().
inline cudaError_t answer(cudaError_t outcome) {
  if (outcome != cudaSuccess) thread_state().last_error = outcome;
  return outcome;
}

// What broke the device, or cudaSuccess. Whoever is told may give back the memory that its work
// used: none of it runs any more by then, as none does in a context that CUDA has ended.
inline cudaError_t broken_and_still(int device) {
  const cudaError_t broken = state().faults.broken(device);
  if (broken != cudaSuccess) state().engine.settle(device);
  return broken;
}

// A call that a plan may fail instead, and that a broken device answers with what broke it.
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

// A call that gives something back: it does so even where it then reports an error, as CUDA's do
// with errors of earlier, asynchronous work.
template <class Body>
cudaError_t release(const char* name, int device, Body body) {
  const cudaError_t outcome = body();
  return call(name, device, [outcome] { return outcome; });
}

}  // namespace cairn::fakes
