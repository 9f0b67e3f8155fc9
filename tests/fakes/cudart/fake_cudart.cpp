#include "tests/fakes/cudart/fake_cudart.hpp"

#include <dlfcn.h>

namespace cairn::fakes {
namespace {

template <class Function>
bool look_up(const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(RTLD_DEFAULT, name));
  return function != nullptr;
}

}  // namespace

std::optional<FakeCudart> FakeCudart::loaded() {
  FakeCudart fake;
  if (look_up("cairn_fake_reset", fake.reset_) && look_up("cairn_fake_fail", fake.fail_) &&
      look_up("cairn_fake_set_unified", fake.set_unified_) &&
      look_up("cairn_fake_hold", fake.hold_) && look_up("cairn_fake_calls", fake.calls_) &&
      look_up("cairn_fake_injected", fake.injected_) && look_up("cairn_fake_alive", fake.alive_) &&
      look_up("cudaPeekAtLastError", fake.last_error_)) {
    return fake;
  }
  return std::nullopt;
}

std::string FakeCudart::leaks() const {
  std::string found;
  for (const char* what : {"device", "managed", "registered", "handles", "reservations", "mappings",
                           "streams", "events"}) {
    if (const std::uint64_t alive = alive_(what); alive != 0) {
      found += std::to_string(alive) + " " + what + " ";
    }
  }
  return found;
}

}  // namespace cairn::fakes
