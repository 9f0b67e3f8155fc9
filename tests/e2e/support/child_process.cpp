#include "tests/e2e/support/child_process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <stdexcept>

namespace cairn::e2e {
namespace {

struct Pipe {
  Pipe() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
      throw std::runtime_error(std::string("pipe: ") + std::strerror(errno));
    }
    read = ends[0];
    write = ends[1];
  }
  int read = -1;
  int write = -1;
};

// The line of `text` that contains `part`, once it is complete.
std::optional<std::string> line_with(const std::string& text, std::string_view part) {
  const std::size_t at = text.find(part);
  if (at == std::string::npos) return std::nullopt;
  const std::size_t end = text.find('\n', at);
  if (end == std::string::npos) return std::nullopt;
  const std::size_t before = text.rfind('\n', at);
  const std::size_t begin = before == std::string::npos ? 0 : before + 1;
  return text.substr(begin, end - begin);
}

// Runs in the child, between fork and exec: only calls that are safe in a signal handler.
[[noreturn]] void become(char* const* arguments, int output, int error, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(error, STDERR_FILENO);
  ::execv(arguments[0], arguments);
  constexpr std::string_view refusal = "cannot be executed\n";
  static_cast<void>(::write(STDERR_FILENO, refusal.data(), refusal.size()) == 0);
  ::_exit(127);
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const Pipe output, error;
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) become(arguments.data(), output.write, error.write, parent);
  ::close(output.write);
  ::close(error.write);
  if (pid_ < 0) {
    ::close(output.read);
    ::close(error.read);
    throw std::runtime_error(std::string("fork: ") + std::strerror(errno));
  }
  follower_ =
      std::jthread([this, from = output.read, errors = error.read] { follow(from, errors); });
}

ChildProcess::~ChildProcess() {
  signal(SIGKILL);
  follower_.join();
}

void ChildProcess::follow(int output, int error) {
  std::array<pollfd, 2> sources = {{{output, POLLIN, 0}, {error, POLLIN, 0}}};
  std::array<std::string*, 2> sinks = {&output_, &error_};
  int open = 2;
  while (open > 0) {
    if (::poll(sources.data(), sources.size(), -1) < 0) continue;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      if (sources[i].fd < 0 || sources[i].revents == 0) continue;
      std::array<char, 4096> bytes;
      const ssize_t count = ::read(sources[i].fd, bytes.data(), bytes.size());
      if (count > 0) {
        const std::lock_guard lock(mutex_);
        sinks[i]->append(bytes.data(), static_cast<std::size_t>(count));
        changed_.notify_all();
      } else {
        ::close(sources[i].fd);
        sources[i].fd = -1;
        --open;
      }
    }
  }
  siginfo_t info{};
  while (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT) != 0) {
  }
  // Reaps under the lock, so that signal() cannot hit a later process of the same number.
  const std::lock_guard lock(mutex_);
  int status = 0;
  ::waitpid(pid_, &status, 0);
  exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  changed_.notify_all();
}

std::optional<std::string> ChildProcess::wait_for_line(std::string_view text) {
  std::unique_lock lock(mutex_);
  std::optional<std::string> line;
  changed_.wait_for(lock, kPatience, [&] {
    line = line_with(output_, text);
    if (!line) line = line_with(error_, text);
    return line.has_value() || exit_code_.has_value();
  });
  return line;
}

std::optional<int> ChildProcess::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kPatience, [this] { return exit_code_.has_value(); });
  return exit_code_;
}

void ChildProcess::signal(int number) {
  const std::lock_guard lock(mutex_);
  if (!exit_code_) ::kill(pid_, number);
}

bool ChildProcess::running() const {
  const std::lock_guard lock(mutex_);
  return !exit_code_;
}

std::string ChildProcess::standard_output() const {
  const std::lock_guard lock(mutex_);
  return output_;
}

std::string ChildProcess::standard_error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

}  // namespace cairn::e2e
