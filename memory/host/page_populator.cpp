#include "memory/host/page_populator.hpp"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

namespace cairn {
namespace {

// Some milliseconds of clearing. Others that map memory wait for it, since the kernel holds the
// address space meanwhile; a larger step is no faster.
constexpr std::size_t kStepBytes = std::size_t{4} << 20;
constexpr int kLowestPriority = 19;
constexpr std::uint64_t kUnknown = std::numeric_limits<std::uint64_t>::max();

// The number after `name` in a file of lines "name number [unit]".
std::uint64_t number_in(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    std::uint64_t number = 0;
    if (word == name && file >> number) return number;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return kUnknown;
}

// A file that is one number; "max" is none.
std::uint64_t number_in(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  return file >> number ? number : kUnknown;
}

std::uint64_t available_in_group(const std::string& folder) {
  const std::uint64_t most = number_in(folder + "/memory.max");
  const std::uint64_t used = number_in(folder + "/memory.current");
  if (most == kUnknown || used == kUnknown) return kUnknown;
  const std::uint64_t files = number_in(folder + "/memory.stat", "inactive_file");
  const std::uint64_t held = used - std::min(used, files == kUnknown ? 0 : files);
  return most - std::min(most, held);
}

// "0::/path" for version 2 of control groups.
std::string own_group() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::/")) return line.substr(3);
  }
  return "/";
}

}  // namespace

std::uint64_t available_memory_bytes() {
  const std::uint64_t machine_kib = number_in("/proc/meminfo", "MemAvailable:");
  std::uint64_t available = machine_kib == kUnknown ? kUnknown : machine_kib * 1024;
  // Each group above bounds those below it.
  for (std::string group = own_group(); true; group.resize(group.rfind('/'))) {
    available = std::min(available, available_in_group("/sys/fs/cgroup" + group));
    if (group.find('/') == std::string::npos) break;
  }
  return available;
}

PagePopulator::PagePopulator(Options options) : options_(std::move(options)) {}

PagePopulator::~PagePopulator() {
  {
    MutexLock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
}

std::unique_ptr<PagePopulator::Task> PagePopulator::begin(std::vector<Bytes> memory) {
  if (options_.threads == 0) return nullptr;
  std::unique_ptr<Task> task(new Task(*this, std::move(memory)));
  {
    MutexLock lock(mutex_);
    tasks_.push_back(task.get());
    start_threads();
  }
  changed_.notify_all();
  return task;
}

PagePopulator::Task::~Task() {
  MutexLock lock(owner_.mutex_);
  std::erase(owner_.tasks_, this);
  while (under_way_ > 0) owner_.changed_.wait(owner_.mutex_);
}

void PagePopulator::start_threads() {
  while (threads_.size() < options_.threads) {
    auto thread = Thread::start("cairn-pages", [this](const std::stop_token& stop) { run(stop); });
    if (!thread) return;  // those that there are do it; without any, the first use does
    threads_.push_back(std::move(*thread));
  }
}

void PagePopulator::run(const std::stop_token& stop) {
  ::setpriority(PRIO_PROCESS, static_cast<::id_t>(::gettid()), kLowestPriority);
  MutexLock lock(mutex_);
  while (!ending_ && !stop.stop_requested()) {
    if (tasks_.empty()) {
      changed_.wait(mutex_);
      continue;
    }
    Task& task = *tasks_.front();
    const std::optional<Bytes> step = next_step();
    if (!step) continue;
    ++task.under_way_;
    mutex_.unlock();
    bool taken = false;
    guarded("taking pages", [&] { taken = take(*step); });
    mutex_.lock();
    --task.under_way_;
    if (taken) {
      task.done_.fetch_add(step->size(), std::memory_order_relaxed);
    } else {
      std::erase(tasks_, &task);
    }
    if (task.under_way_ == 0) changed_.notify_all();
  }
}

bool PagePopulator::take(Bytes step) const {
  const std::uint64_t asked_bytes = step.size() * options_.threads;  // each asks at once
  if (options_.available_bytes() < options_.kept_free_bytes + asked_bytes) return false;
  // Kernels before 5.14 do not know it; nothing else takes pages of memory that is in use.
  return ::madvise(step.data(), step.size(), MADV_POPULATE_WRITE) == 0;
}

std::optional<PagePopulator::Bytes> PagePopulator::next_step() {
  Task& task = *tasks_.front();
  while (task.part_ < task.memory_.size() && task.at_ == task.memory_[task.part_].size()) {
    ++task.part_;
    task.at_ = 0;
  }
  if (task.part_ == task.memory_.size()) {
    tasks_.pop_front();
    return std::nullopt;
  }
  const Bytes part = task.memory_[task.part_];
  const Bytes step = part.subspan(task.at_, std::min(kStepBytes, part.size() - task.at_));
  if (task.at_ == 0) ::madvise(part.data(), part.size(), MADV_HUGEPAGE);  // only a hint
  task.at_ += step.size();
  return step;
}

}  // namespace cairn
