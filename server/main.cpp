#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <optional>
#include <span>
#include <string>

#include "base/line_writer.hpp"
#include "base/printable.hpp"
#include "base/process_log.hpp"
#include "base/standard_files.hpp"
#include "base/thread.hpp"
#include "base/token.hpp"
#include "base/version.hpp"
#include "server/auth/tokens.hpp"
#include "server/codec/json_log.hpp"
#include "server/config/command_line.hpp"
#include "server/config/may_pass.hpp"
#include "server/server.hpp"
#include "server/service_manager.hpp"
#include "server/ticker.hpp"

namespace {

constexpr int kExitDone = 0;
constexpr int kExitFailed = 1;        // another start may succeed
constexpr int kExitWrongSetting = 2;  // another start would fail too
// How long a start may wait for a reader of the log that has stopped reading.
constexpr std::chrono::milliseconds kStartFlush{500};

sigset_t awaited_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGHUP);
  return set;
}

// Blocks these signals in all threads started later; wait_for_stop() receives them. Writing to a
// closed connection, or beyond a limit on file size, returns an error instead of a signal.
void take_signals() {
  const sigset_t set = awaited_signals();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
}

// Waits for SIGTERM or SIGINT and returns it; the next one ends the process at once. SIGHUP makes
// the server read its files again.
int wait_for_stop(cairn::Server& server) {
  const sigset_t set = awaited_signals();
  int signal = 0;
  while (::sigwait(&set, &signal) != 0 || signal == SIGHUP) {
    cairn::guarded("reload", [&] { server.reload(); });
  }
  ::signal(SIGTERM, SIG_DFL);
  ::signal(SIGINT, SIG_DFL);
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  return signal;
}

// Never waits for a reader of stderr that has stopped reading.
int refuse(const cairn::Error& why, int exit_code = kExitWrongSetting) {
  cairn::write_last_words("cairn-server: " + cairn::printable(why.detail) + "\n");
  return exit_code;
}

// Like the standard library's handler, but does not wait for a reader.
[[noreturn]] void end_unhandled() {
  try {
    if (const auto thrown = std::current_exception()) std::rethrow_exception(thrown);
    cairn::write_last_words("cairn-server: terminated\n");
  } catch (const std::exception& thrown) {
    cairn::write_last_words("cairn-server: terminated: " + std::string(thrown.what()) + "\n");
  } catch (...) {
    cairn::write_last_words("cairn-server: terminated by an exception of an unknown type\n");
  }
  std::abort();
}

std::string url_of(const cairn::Settings& settings, std::uint16_t port) {
  const cairn::http::ListenConfig& listen = settings.listen;
  const bool is_v6 = listen.host.find(':') != std::string::npos;
  const std::string host = is_v6 ? "[" + listen.host + "]" : listen.host;
  const std::string scheme = settings.tls.certificate.empty() ? "http://" : "https://";
  return scheme + host + ":" + std::to_string(port);
}

int hash_token() {
  std::string line;
  std::getline(std::cin, line);
  const auto token = cairn::bearer_token(line, "the standard input");
  if (!token) return refuse(token.error());
  const auto hash = cairn::token_hash(*token);
  if (!hash) return refuse(hash.error());
  std::puts(hash->c_str());
  return kExitDone;
}

int check(const cairn::Settings& settings) {
  const cairn::SystemClock clock;
  if (auto right = cairn::check_startable(settings, clock); !right) return refuse(right.error());
  std::puts("the settings are right");
  return kExitDone;
}

std::span<const char* const> environment() {
  std::size_t count = 0;
  while (environ[count] != nullptr) ++count;
  return {environ, count};
}

int serve(const cairn::Settings& settings) {
  take_signals();
  const cairn::SystemClock clock;
  cairn::LineWriter out(STDOUT_FILENO);
  cairn::LineWriter err(STDERR_FILENO);
  const bool is_json = settings.log_format == cairn::LogFormat::json_lines;
  cairn::Logger log(
      clock, err,
      {.least = settings.log_level, .form = is_json ? cairn::json_log_line : cairn::logfmt_line});
  const cairn::ProcessLog process_log(log);
  auto server = cairn::Server::start(settings, clock, log);
  if (!server) {
    const bool may_pass = cairn::may_pass(server.error().code);
    return refuse(server.error(), may_pass ? kExitFailed : kExitWrongSetting);
  }
  // A program that waits for this line then finds the whole start in the log.
  log.flush(kStartFlush);
  out.write("cairn-server " + std::string(cairn::kVersion) + " listening on " +
            url_of(settings, (*server)->port()) + "\n");

  const auto manager = cairn::ServiceManager::from_environment();
  manager.ready();
  std::optional<cairn::Ticker> watchdog;
  if (const auto period = manager.watchdog_period()) {
    // Twice per watchdog period.
    watchdog.emplace("watchdog", *period / 2, [&manager, &served = **server] {
      if (served.is_alive()) manager.alive();
    });
  }
  const int signal = wait_for_stop(**server);
  manager.stopping();
  log.info("stopping", {{"signal", signal == SIGINT ? "SIGINT" : "SIGTERM"}});
  const bool drained = (*server)->drain();
  if (!drained) log.warning("requests were cut: they took longer than drain_timeout_ms");
  watchdog.reset();
  server->reset();
  log.info("stopped");
  return kExitDone;
}

}  // namespace

int main(int argc, char** argv) {
  cairn::open_standard_files();
  std::set_terminate(end_unhandled);
  try {
    auto asked = cairn::read_command_line(
        {.arguments = {argv, static_cast<std::size_t>(argc)}, .environment = environment()});
    if (!asked) return refuse(asked.error());
    if (const auto* text = std::get_if<cairn::PrintAndExit>(&*asked)) {
      std::fputs(text->text.c_str(), stdout);
      return kExitDone;
    }
    if (std::holds_alternative<cairn::HashToken>(*asked)) return hash_token();
    if (const auto* asked_only = std::get_if<cairn::CheckConfig>(&*asked)) {
      return check(asked_only->settings);
    }
    return serve(std::get<cairn::Settings>(*asked));
  } catch (const std::exception& thrown) {
    cairn::write_last_words("cairn-server: " + std::string(thrown.what()) + "\n");
    return kExitFailed;
  }
}
