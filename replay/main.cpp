#include <unistd.h>

#include <csignal>
#include <ctime>
#include <fstream>
#include <iostream>
#include <memory>
#include <span>
#include <stop_token>
#include <thread>

#include "base/standard_files.hpp"
#include "replay/agent_actions.hpp"
#include "replay/console.hpp"
#include "replay/driver.hpp"
#include "replay/generator.hpp"
#include "replay/group_simulation.hpp"
#include "replay/kv_model.hpp"
#include "replay/options.hpp"
#include "replay/oracle.hpp"
#include "replay/report.hpp"
#include "replay/simulation.hpp"
#include "replay/simulation_report.hpp"
#include "replay/table_reader.hpp"
#include "replay/trace_reader.hpp"

namespace cairn::replay {
namespace {

constexpr int kFailed = 1;
constexpr int kBadArguments = 2;

// How soon the watcher notices that it is no longer needed.
constexpr timespec kLookEvery{0, 50'000'000};

sigset_t interrupting() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}

// Turns the first SIGINT or SIGTERM into a stop request, so that a replay ends cleanly and removes
// its cache. A second one ends the program. Create it before any other thread.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt() { watcher_.request_stop(); }
  std::stop_token token() const { return source_.get_token(); }

 private:
  std::stop_source source_;
  std::jthread watcher_;
};

Interrupt::Interrupt() {
  const sigset_t signals = interrupting();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  watcher_ = std::jthread([source = source_, signals](const std::stop_token& stop) mutable {
    bool interrupted = false;
    while (!stop.stop_requested() && !interrupted) {
      interrupted = sigtimedwait(&signals, nullptr, &kLookEvery) >= 0;
    }
    if (interrupted) source.request_stop();
    // The next signal has its usual effect, on this thread.
    pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
    while (!stop.stop_requested()) nanosleep(&kLookEvery, nullptr);
  });
}

Result<std::unique_ptr<Workload>> workload_of(const ReplayOptions& options) {
  if (options.trace.empty()) return generated(options.generator);
  const auto opened = [](auto reader) -> Result<std::unique_ptr<Workload>> {
    if (!reader) return Error{reader.error().code, "--trace " + reader.error().detail};
    return std::unique_ptr<Workload>(std::move(*reader));
  };
  if (!options.columns) return opened(TraceReader::open(options.trace));
  return opened(TableReader::open(
      {.path = options.trace, .columns = *options.columns, .block_tokens = options.block_tokens}));
}

Console::Mode console_mode(const ReplayOptions& options) {
  if (options.json) return Console::Mode::silent;
  return ::isatty(STDERR_FILENO) == 1 ? Console::Mode::bar : Console::Mode::lines;
}

int report(const ReplayOptions& options, const SimulationOutcome& outcome) {
  if (options.json) {
    print_json(std::cout, outcome);
  } else {
    print_table(std::cout, outcome);
  }
  if (options.simulation->picture.empty()) return 0;
  std::ofstream picture(options.simulation->picture);
  draw(picture, outcome);
  picture.close();
  if (picture) return 0;
  std::cerr << "cairn-replay: --picture " << options.simulation->picture << ": not written\n";
  return kFailed;
}

int run(std::span<const char* const> arguments) {
  const auto options = parse_options(arguments, std::cout);
  if (!options) {
    std::cerr << "cairn-replay: " << options.error().detail << "\n";
    return kBadArguments;
  }
  if (!options->has_value()) return 0;
  const ReplayOptions& chosen = **options;
  auto workload = workload_of(chosen);
  if (!workload) {
    std::cerr << "cairn-replay: " << workload.error().detail << "\n";
    return kBadArguments;
  }
  if (chosen.kv_model) {
    workload = with_finer_keys(std::move(*workload), {.block_tokens = chosen.block_tokens,
                                                      .key_tokens = chosen.kv_model->block_tokens});
    if (!workload) {
      std::cerr << "cairn-replay: " << workload.error().detail << "\n";
      return kBadArguments;
    }
  }
  if (chosen.actions) {
    workload = with_actions(**workload, chosen.limit, chosen.actions);
    if (!workload) {
      std::cerr << "cairn-replay: " << workload.error().detail << "\n";
      return kFailed;
    }
  }
  if (chosen.simulation) {
    auto outcome = chosen.kv_model
                       ? simulate_groups(*chosen.simulation, *chosen.kv_model, **workload,
                                         chosen.limit, chosen.hints)
                       : simulate(*chosen.simulation, **workload, chosen.limit, chosen.hints);
    if (!outcome) {
      std::cerr << "cairn-replay: " << outcome.error().detail << "\n";
      return kFailed;
    }
    return report(chosen, *outcome);
  }
  if (chosen.hints) {
    workload = with_hints(**workload, chosen.limit, chosen.hints);
    if (!workload) {
      std::cerr << "cairn-replay: " << workload.error().detail << "\n";
      return kFailed;
    }
  }
  const Interrupt interrupt;
  Console console(stderr, console_mode(chosen));
  auto outcome = replay(chosen, **workload, console, interrupt.token());
  console.finish();
  if (!outcome) {
    std::cerr << "cairn-replay: " << outcome.error().code << ": " << outcome.error().detail << "\n";
    return kFailed;
  }
  if (chosen.json) {
    print_json(std::cout, *outcome, console.messages());
  } else {
    print_report(std::cout, *outcome);
  }
  return faults_of(*outcome).empty() ? 0 : kFailed;
}

}  // namespace
}  // namespace cairn::replay

int main(int argc, char** argv) {
  cairn::open_standard_files();
  return cairn::replay::run({argv, static_cast<std::size_t>(argc)});
}
