#include "tests/conformance/stream_gate.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <time.h>

#include <atomic>
#include <stdexcept>

namespace cairn::conformance {
namespace {

constexpr std::size_t kPageBytes = 4096;

// A signal handler reaches only static variables.
std::atomic<const std::byte*> held_page{nullptr};
std::atomic<bool> opened{false};

void wait_in_fault(int, ::siginfo_t* info, void*) {
  if (info->si_addr != held_page.load()) {
    ::signal(SIGSEGV, SIG_DFL);  // not our page: the fault repeats and ends the program
    return;
  }
  const ::timespec pause{.tv_sec = 0, .tv_nsec = 50'000};
  while (!opened.load()) ::nanosleep(&pause, nullptr);
}

class PageGate final : public StreamGate {
 public:
  PageGate() {
    void* const page = ::mmap(nullptr, kPageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) throw std::runtime_error("no page for a gate");
    page_ = static_cast<std::byte*>(page);
    opened = false;
    held_page = page_;
    struct ::sigaction action {};
    action.sa_sigaction = wait_in_fault;
    action.sa_flags = SA_SIGINFO;
    ::sigaction(SIGSEGV, &action, &before_);
  }
  ~PageGate() override {
    ::sigaction(SIGSEGV, &before_, nullptr);
    held_page = nullptr;
    ::munmap(page_, kPageBytes);
  }
  void hold(Stream& stream) override { stream.zero(page_, 1).value(); }
  void open() override {
    ::mprotect(page_, kPageBytes, PROT_READ | PROT_WRITE);
    opened = true;
  }

 private:
  std::byte* page_ = nullptr;
  struct ::sigaction before_ {};
};

}  // namespace

std::unique_ptr<StreamGate> make_page_gate() { return std::make_unique<PageGate>(); }

}  // namespace cairn::conformance
