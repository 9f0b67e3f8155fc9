#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <span>
#include <string>

#include "server/build_info.hpp"
#include "server/config/command_line.hpp"
#include "server/server.hpp"

namespace {

constexpr int kExitDone = 0;
constexpr int kExitFailed = 1;
constexpr int kExitWrongSetting = 2;

sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

// Threads made from here on leave these signals to wait_for_stop(); a connection that goes away is
// an error of a write.
void take_signals() {
  const sigset_t set = stop_signals();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
}

// Another signal after this one ends the process at once.
int wait_for_stop() {
  const sigset_t set = stop_signals();
  int signal = 0;
  ::sigwait(&set, &signal);
  ::signal(SIGTERM, SIG_DFL);
  ::signal(SIGINT, SIG_DFL);
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  return signal;
}

int refuse(const cairn::Error& why) {
  std::fprintf(stderr, "cairn-server: %s\n", why.detail.c_str());
  return kExitWrongSetting;
}

std::string url_of(const cairn::http::ListenConfig& listen, std::uint16_t port) {
  const bool is_v6 = listen.host.find(':') != std::string::npos;
  const std::string host = is_v6 ? "[" + listen.host + "]" : listen.host;
  return "http://" + host + ":" + std::to_string(port);
}

std::span<const char* const> environment() {
  std::size_t count = 0;
  while (environ[count] != nullptr) ++count;
  return {environ, count};
}

int serve(const cairn::Settings& settings) {
  take_signals();
  const cairn::SystemClock clock;
  cairn::Logger log(clock, STDERR_FILENO, settings.log_level);
  auto server = cairn::Server::start(settings, clock, log);
  if (!server) return refuse(server.error());
  std::printf("cairn-server %s listening on %s\n", std::string(cairn::build_info::kVersion).c_str(),
              url_of(settings.listen, (*server)->port()).c_str());
  std::fflush(stdout);

  const int signal = wait_for_stop();
  log.info("stopping", {{"signal", signal == SIGINT ? "SIGINT" : "SIGTERM"}});
  const bool drained = (*server)->drain();
  if (!drained) log.warning("requests were cut: they took longer than drain_timeout_ms");
  server->reset();
  log.info("stopped");
  return kExitDone;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    auto asked = cairn::read_command_line(
        {.arguments = {argv, static_cast<std::size_t>(argc)}, .environment = environment()});
    if (!asked) return refuse(asked.error());
    if (const auto* text = std::get_if<cairn::PrintAndExit>(&*asked)) {
      std::fputs(text->text.c_str(), stdout);
      return kExitDone;
    }
    return serve(std::get<cairn::Settings>(*asked));
  } catch (const std::exception& thrown) {
    std::fprintf(stderr, "cairn-server: %s\n", thrown.what());
    return kExitFailed;
  }
}
