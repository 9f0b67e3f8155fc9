// cairn_simulation makes runs with one seed after another until the time or the steps are over. It
// prints a finding with the fewest steps that show it. `./run simulate` starts it.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>

#include "tests/simulation/in_child.hpp"
#include "tests/simulation/shrink.hpp"

namespace cairn::sim {
namespace {

constexpr const char* kUsage =
    "usage: cairn_simulation [--seed N] [--steps N] [--minutes N] [--only A,B,...] [--tell]\n"
    "  --seed N      begin with the run of this seed (1); with --only that run alone\n"
    "  --steps N     stop after N steps over all runs (1000000 without --minutes)\n"
    "  --minutes N   stop after N minutes\n"
    "  --only A,B    only these steps of the run of --seed\n"
    "  --tell        print each step on stderr\n"
    "Prints progress on stderr.\n";

// Steps of one run: enough for several runs of the server, few enough to leave out one by one.
constexpr std::uint32_t kStepsOfARun = 2'000;
// The number of runs that shrinking may take: some seconds.
constexpr std::uint32_t kTries = 400;
// Time between lines of progress, so that a minute in `./run test` prints few.
constexpr double kProgressSeconds = 30;

struct Arguments {
  std::uint64_t seed = 1;
  std::optional<std::uint64_t> steps = {};
  std::optional<double> minutes = {};
  std::optional<Steps> only = {};
  bool tell = false;
};

std::optional<Arguments> parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--tell") {
      arguments.tell = true;
      continue;
    }
    if (i + 1 == argc) return std::nullopt;
    const char* const value = argv[++i];
    if (name == "--seed") {
      arguments.seed = std::strtoull(value, nullptr, 10);
    } else if (name == "--steps") {
      arguments.steps = std::strtoull(value, nullptr, 10);
    } else if (name == "--minutes") {
      arguments.minutes = std::strtod(value, nullptr);
    } else if (name == "--only") {
      arguments.only.emplace();
      for (const char* at = value; *at != '\0';) {
        char* end = nullptr;
        arguments.only->push_back(static_cast<std::uint32_t>(std::strtoul(at, &end, 10)));
        if (end == at) return std::nullopt;
        at = *end == ',' ? end + 1 : end;
      }
    } else {
      return std::nullopt;
    }
  }
  return arguments;
}

void tell_shrunk(const RunOptions& failing, const RunOutcome& outcome) {
  std::printf("seed %llu, step %u: %s\n", static_cast<unsigned long long>(failing.seed),
              outcome.step, outcome.finding.c_str());
  std::fflush(stdout);
  Steps steps(failing.steps);
  std::iota(steps.begin(), steps.end(), 0u);
  std::string finding = outcome.finding;
  const auto fails = [&](const Steps& fewer) {
    RunOptions options = failing;
    options.only = fewer;
    const RunOutcome again = run_in_child(options);
    if (!again.finding.empty()) finding = again.finding;
    return !again.finding.empty();
  };
  steps = shrink(std::move(steps), kTries, fails);
  std::string list;
  for (const std::uint32_t step : steps) list += (list.empty() ? "" : ",") + std::to_string(step);
  std::printf("with %zu steps: %s\n  ./run simulate --tell --seed %llu --only %s\n", steps.size(),
              finding.c_str(), static_cast<unsigned long long>(failing.seed), list.c_str());
}

int run_all(const Arguments& arguments) {
  const auto began = std::chrono::steady_clock::now();
  const auto seconds = [began] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  };
  const std::uint64_t most = arguments.steps.value_or(arguments.minutes ? UINT64_MAX : 1'000'000);
  std::uint64_t steps = 0;
  std::uint64_t lives = 0;
  std::uint64_t events = 0;
  std::uint64_t seed = arguments.seed;
  double told_seconds = 0;
  for (; steps < most && (!arguments.minutes || seconds() < *arguments.minutes * 60); ++seed) {
    const RunOptions options{.seed = seed, .steps = kStepsOfARun};
    const RunOutcome outcome = run_in_child(options);
    steps += outcome.steps;
    lives += outcome.lives;
    events += outcome.events;
    if (seconds() - told_seconds >= kProgressSeconds) {
      told_seconds = seconds();
      std::fprintf(stderr, "seed %llu: %llu steps in %.0f s\n",
                   static_cast<unsigned long long>(seed), static_cast<unsigned long long>(steps),
                   told_seconds);
    }
    if (outcome.finding.empty()) continue;
    std::printf("found after %llu steps, %.0f s\n", static_cast<unsigned long long>(steps),
                seconds());
    tell_shrunk(options, outcome);
    return 1;
  }
  std::printf(
      "%llu runs, %llu steps (%.0f per second), %llu events, %llu lives: nothing was found\n",
      static_cast<unsigned long long>(seed - arguments.seed),
      static_cast<unsigned long long>(steps), static_cast<double>(steps) / seconds(),
      static_cast<unsigned long long>(events), static_cast<unsigned long long>(lives));
  return 0;
}

}  // namespace
}  // namespace cairn::sim

int main(int argc, char** argv) {
  using namespace cairn::sim;
  const auto arguments = parse(argc, argv);
  if (!arguments) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  if (!arguments->only && !arguments->tell) return run_all(*arguments);
  const RunOutcome outcome = run({.seed = arguments->seed,
                                  .steps = kStepsOfARun,
                                  .only = arguments->only,
                                  .tell = arguments->tell});
  std::printf("step %u: %s\n", outcome.step,
              outcome.finding.empty() ? "nothing was found" : outcome.finding.c_str());
  return outcome.finding.empty() ? 0 : 1;
}
