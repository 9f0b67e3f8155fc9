#include "tests/simulation/in_child.hpp"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "base/assert.hpp"
#include "tests/fakes/temp_dir.hpp"

namespace cairn::sim {
namespace {

// A run takes some 30 ms of CPU time, ten times as much under a sanitizer. A run that reaches this
// limit has an endless loop.
constexpr ::rlim_t kMostCpuSeconds = 5;

struct Answer {
  std::uint64_t numbers[5] = {};  // step, events, steps, lives, fingerprint
  char finding[480] = {};
};

// The last line that a process printed, which says why it ended.
std::string last_line(std::string_view said) {
  while (said.ends_with('\n')) said.remove_suffix(1);
  return std::string(said.substr(said.rfind('\n') + 1));
}

std::string read_all(int fd) {
  std::string all;
  std::array<char, 4096> part;
  for (::ssize_t read; (read = ::read(fd, part.data(), part.size())) > 0;) {
    all.append(part.data(), static_cast<std::size_t>(read));
  }
  return all;
}

}  // namespace

RunOutcome run_in_child(const RunOptions& options) {
  // A run killed at its time limit leaves its files: hundreds of MiB in memory.
  const fakes::TempDir left{options.folder};
  int answers[2];
  int words[2];
  CAIRN_ASSERT(::pipe(answers) == 0 && ::pipe(words) == 0, "pipe() failed");
  std::fflush(nullptr);
  const ::pid_t child = ::fork();
  CAIRN_ASSERT(child >= 0, "fork() failed");
  if (child == 0) {
    ::dup2(words[1], STDERR_FILENO);
    ::close(answers[0]);
    ::close(words[0]);
    ::close(words[1]);
    const ::rlimit cpu{.rlim_cur = kMostCpuSeconds, .rlim_max = kMostCpuSeconds + 1};
    CAIRN_ASSERT(::setrlimit(RLIMIT_CPU, &cpu) == 0, "setrlimit() failed");
    RunOptions inside = options;
    inside.folder = left.path();
    const RunOutcome outcome = run(inside);
    Answer answer{{outcome.step, outcome.events, outcome.steps, outcome.lives, outcome.fingerprint},
                  {}};
    std::strncpy(answer.finding, outcome.finding.c_str(), sizeof(answer.finding) - 1);
    // The answer is smaller than a pipe's buffer.
    const bool sent = ::write(answers[1], &answer, sizeof(answer)) == sizeof(answer);
    ::_exit(sent ? 0 : 1);
  }
  ::close(answers[1]);
  ::close(words[1]);
  const std::string said = read_all(words[0]);
  Answer answer;
  const bool received = ::read(answers[0], &answer, sizeof(answer)) == sizeof(answer);
  ::close(answers[0]);
  ::close(words[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!received) {
    const std::string how = WIFSIGNALED(status) ? ::strsignal(WTERMSIG(status)) : "it exited";
    return {.finding = "the process ended (" + how + "): " + last_line(said)};
  }
  RunOutcome outcome{.finding = answer.finding,
                     .step = static_cast<std::uint32_t>(answer.numbers[0]),
                     .events = answer.numbers[1],
                     .steps = answer.numbers[2],
                     .lives = answer.numbers[3],
                     .fingerprint = answer.numbers[4]};
  // A worker catches an exception of its task and prints it. In a simulation that is a finding.
  if (outcome.finding.empty() && !said.empty()) outcome.finding = last_line(said);
  return outcome;
}

}  // namespace cairn::sim
