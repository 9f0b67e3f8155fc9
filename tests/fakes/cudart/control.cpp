// The functions by which a test controls and inspects the fake; see fake_cudart.hpp.
#include <driver_types.h>

#include <cstdint>
#include <string_view>

#include "tests/fakes/cudart/state.hpp"

using cairn::fakes::Kind;
using cairn::fakes::State;
using cairn::fakes::state;

extern "C" {

void cairn_fake_reset(std::uint64_t seed) {
  state().faults.reset();
  state().engine.seed(seed);
}
void cairn_fake_fail(const char* call, std::uint64_t n, int error) {
  state().faults.plan({.call = call, .n = n, .error = static_cast<cudaError_t>(error)});
}
void cairn_fake_hold(int held) { state().engine.hold(held != 0); }
void cairn_fake_set_unified(int has) { state().concurrent_managed = has != 0; }
std::uint64_t cairn_fake_calls(const char* call) { return state().faults.calls(call); }
std::uint64_t cairn_fake_injected() { return state().faults.injected(); }
std::uint64_t cairn_fake_alive(const char* what) {
  const State& machine = state();
  const std::string_view wanted(what);
  if (wanted == "device") return machine.memory.alive(Kind::device);
  if (wanted == "managed") return machine.memory.alive(Kind::managed);
  if (wanted == "registered") return machine.memory.alive(Kind::registered);
  if (wanted == "handles") return machine.virtual_memory.handles();
  if (wanted == "reservations") return machine.virtual_memory.reservations();
  if (wanted == "mappings") return machine.virtual_memory.mappings();
  if (wanted == "streams") return machine.engine.streams();
  return machine.engine.events();
}
// For another fake that works on this one's devices. Returns the real place of device memory; null
// if the device does not have it, or the range runs past its end.
void* cairn_fake_device_bytes(const void* address, std::size_t size_bytes, int device) {
  const auto side = state().memory.find(address, size_bytes);
  const bool its = side && side->kind == Kind::device && side->device == device;
  return its ? side->bytes : nullptr;
}
int cairn_fake_current_device() { return cairn::fakes::thread_state().device; }
int cairn_fake_stream_device(cudaStream_t stream) {
  return state().engine.device_of(stream).value_or(-1);
}

}  // extern "C"
