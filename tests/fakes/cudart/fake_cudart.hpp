#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace cairn::fakes {

// Steers the fake libcudart, where it is the one that this program runs with: put its folder first
// in LD_LIBRARY_PATH. Plans and counts are the whole process's.
class FakeCudart {
 public:
  // Nothing where the program runs with NVIDIA's library.
  static std::optional<FakeCudart> loaded();

  // Forgets plans, counts and broken devices; seeds the delays of streams made from now on.
  void reset(std::uint64_t seed) const { reset_(seed); }
  // The n-th call of that name from now on (1 is the next) fails with CUDA's `error`; where CUDA
  // says that the error stays, so does it here. "work" is what streams run, whoever issued it.
  void fail(const std::string& call, std::uint64_t n, int error) const {
    fail_(call.c_str(), n, error);
  }
  void fail_all(const std::string& call, int error) const { fail(call, UINT64_MAX, error); }
  // Whether devices have managed memory that both sides may use at once; until set again.
  void set_unified(bool has) const { set_unified_(has ? 1 : 0); }
  // While held streams begin with nothing, as those of a device that hangs.
  void hold(bool held) const { hold_(held ? 1 : 0); }
  std::uint64_t calls(const std::string& call) const { return calls_(call.c_str()); }
  // How many calls a plan has made to fail.
  std::uint64_t injected() const { return injected_(); }

  // What is alive in it, in words; empty where nothing is.
  std::string leaks() const;
  std::uint64_t registrations() const { return alive_("registered"); }
  // The calling thread's last error of CUDA, left there.
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
