#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace cairn::fakes {

// Controls the fake libcudart, if this program runs with it: put its folder first in
// LD_LIBRARY_PATH. Plans and counts are per process.
class FakeCudart {
 public:
  // nullopt if the program runs with NVIDIA's library.
  static std::optional<FakeCudart> loaded();

  // Clears plans, counts and broken devices. Seeds the delays of streams created from now on.
  void reset(std::uint64_t seed) const { reset_(seed); }
  // The n-th call of that name from now on (1: the next) fails with CUDA's `error`. Errors that are
  // sticky in CUDA are sticky here. "work" counts the work that streams run.
  void fail(const std::string& call, std::uint64_t n, int error) const {
    fail_(call.c_str(), n, error);
  }
  void fail_all(const std::string& call, int error) const { fail(call, UINT64_MAX, error); }
  // Whether both sides may use the devices' managed memory at once; until set again.
  void set_unified(bool has) const { set_unified_(has ? 1 : 0); }
  // While held, no stream starts work, like on a hanging device.
  void hold(bool held) const { hold_(held ? 1 : 0); }
  std::uint64_t calls(const std::string& call) const { return calls_(call.c_str()); }
  // How many calls have failed by a plan.
  std::uint64_t injected() const { return injected_(); }

  // A text that lists all live resources; empty if there are none.
  std::string leaks() const;
  std::uint64_t registrations() const { return alive_("registered"); }
  // The calling thread's last CUDA error; does not reset it.
  int last_error() const { return last_error_(); }

 private:
  void (*reset_)(std::uint64_t) = nullptr;
  void (*fail_)(const char*, std::uint64_t, int) = nullptr;
  void (*set_unified_)(int) = nullptr;
  void (*hold_)(int) = nullptr;
  std::uint64_t (*calls_)(const char*) = nullptr;
  std::uint64_t (*injected_)() = nullptr;
  std::uint64_t (*alive_)(const char*) = nullptr;
  int (*last_error_)() = nullptr;
};

}  // namespace cairn::fakes
