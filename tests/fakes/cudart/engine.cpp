#include "tests/fakes/cudart/engine.hpp"

#include <algorithm>
#include <chrono>
#include <vector>

namespace cairn::fakes {
namespace {

// One in kOneLateOf pieces of work is delayed, by at most kMostDelay_us: enough to detect a caller
// that does not wait, and little enough for a test of some hundred pieces.
constexpr std::uint64_t kOneLateOf = 4;
constexpr std::uint64_t kMostDelay_us = 200;

}  // namespace

void Engine::seed(std::uint64_t seed) {
  const std::lock_guard lock(mutex_);
  seed_ = seed;
}

void Engine::hold(bool held) {
  const std::lock_guard lock(mutex_);
  held_ = held;
  changed_.notify_all();
}

cudaStream_t Engine::create_stream(int device) {
  const std::lock_guard lock(mutex_);
  auto stream = std::make_unique<Stream>();
  stream->device = device;
  stream->random.seed(seed_++);
  stream->thread = std::thread([this, &stream = *stream] { work(stream); });
  // Only a key of the map: never dereferenced.
  auto* const handle = reinterpret_cast<cudaStream_t>(stream.get());
  streams_.emplace(handle, std::move(stream));
  return handle;
}

cudaError_t Engine::destroy_stream(cudaStream_t handle) {
  std::unique_lock lock(mutex_);
  auto found = streams_.extract(handle);
  if (found.empty()) return cudaErrorInvalidResourceHandle;
  found.mapped()->closing = true;
  changed_.notify_all();
  lock.unlock();
  found.mapped()->thread.join();
  return cudaSuccess;
}

std::optional<int> Engine::device_of(cudaStream_t handle) const {
  const std::lock_guard lock(mutex_);
  const auto found = streams_.find(handle);
  if (found == streams_.end()) return std::nullopt;
  return found->second->device;
}

void Engine::work(Stream& stream) {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stream.queue.empty() ? stream.closing : !held_; });
    if (stream.queue.empty()) return;
    Operation& next = stream.queue.front();
    if (next.awaits) changed_.wait(lock, [&] { return next.awaits->reached; });
    const bool late = stream.random() % kOneLateOf == 0;
    const std::chrono::microseconds delay(late ? stream.random() % kMostDelay_us : 0);
    stream.working = !next.on_host;
    lock.unlock();
    if (late) std::this_thread::sleep_for(delay);
    if (next.work && faults_.broken(stream.device) == cudaSuccess) {
      const cudaError_t injected = faults_.next("work");
      const cudaError_t outcome = injected == cudaSuccess ? next.work() : injected;
      if (outcome != cudaSuccess) faults_.break_device(stream.device, outcome);
    }
    next.work = nullptr;
    lock.lock();
    stream.working = false;
    if (next.reaches) next.reaches->reached = true;
    stream.queue.pop_front();
    changed_.notify_all();
  }
}

cudaError_t Engine::push(cudaStream_t handle, Operation operation) {
  const std::lock_guard lock(mutex_);
  const auto found = streams_.find(handle);
  if (found == streams_.end()) return cudaErrorInvalidResourceHandle;
  found->second->queue.push_back(std::move(operation));
  changed_.notify_all();
  return cudaSuccess;
}

cudaError_t Engine::run(cudaStream_t handle, Work work) {
  return push(handle, {.work = std::move(work)});
}

cudaError_t Engine::run_on_host(cudaStream_t handle, std::function<void()> function) {
  const auto work = [function = std::move(function)] {
    function();
    return cudaSuccess;
  };
  return push(handle, {.work = work, .on_host = true});
}

void Engine::await(const std::shared_ptr<Point>& point) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return point->reached; });
}

cudaError_t Engine::finish(cudaStream_t handle) {
  const auto end = std::make_shared<Point>();
  const cudaError_t pushed = push(handle, {.reaches = end});
  if (pushed == cudaSuccess) await(end);
  return pushed;
}

void Engine::finish_device(int device) {
  std::vector<cudaStream_t> handles;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [handle, stream] : streams_) {
      if (stream->device == device) handles.push_back(handle);
    }
  }
  for (cudaStream_t handle : handles) static_cast<void>(finish(handle));
}

void Engine::settle(int device) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return std::ranges::none_of(streams_, [&](const auto& stream) {
      return stream.second->device == device && stream.second->working;
    });
  });
}

cudaError_t Engine::query(cudaStream_t handle) const {
  const std::lock_guard lock(mutex_);
  const auto found = streams_.find(handle);
  if (found == streams_.end()) return cudaErrorInvalidResourceHandle;
  return found->second->queue.empty() ? cudaSuccess : cudaErrorNotReady;
}

cudaEvent_t Engine::create_event(int device) {
  const std::lock_guard lock(mutex_);
  auto event = std::make_unique<Event>(Event{.device = device});
  auto* const handle = reinterpret_cast<cudaEvent_t>(event.get());
  events_.emplace(handle, std::move(event));
  return handle;
}

cudaError_t Engine::destroy_event(cudaEvent_t handle) {
  const std::lock_guard lock(mutex_);
  return events_.erase(handle) == 1 ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

std::optional<int> Engine::device_of(cudaEvent_t handle) const {
  const std::lock_guard lock(mutex_);
  const auto found = events_.find(handle);
  if (found == events_.end()) return std::nullopt;
  return found->second->device;
}

cudaError_t Engine::record(cudaEvent_t event, cudaStream_t stream) {
  const auto point = std::make_shared<Point>();
  {
    const std::lock_guard lock(mutex_);
    const auto found = events_.find(event);
    const auto on = streams_.find(stream);
    if (found == events_.end() || on == streams_.end() ||
        found->second->device != on->second->device) {
      return cudaErrorInvalidResourceHandle;
    }
    found->second->point = point;
  }
  return push(stream, {.reaches = point});
}

cudaError_t Engine::query(cudaEvent_t handle) const {
  const std::lock_guard lock(mutex_);
  const auto found = events_.find(handle);
  if (found == events_.end()) return cudaErrorInvalidResourceHandle;
  const auto& point = found->second->point;
  return point == nullptr || point->reached ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t Engine::wait_for(cudaStream_t stream, cudaEvent_t event) {
  std::shared_ptr<Point> point;
  {
    const std::lock_guard lock(mutex_);
    const auto found = events_.find(event);
    if (found == events_.end()) return cudaErrorInvalidResourceHandle;
    point = found->second->point;
  }
  return point == nullptr ? cudaSuccess : push(stream, {.awaits = point});
}

std::size_t Engine::streams() const {
  const std::lock_guard lock(mutex_);
  return streams_.size();
}

std::size_t Engine::events() const {
  const std::lock_guard lock(mutex_);
  return events_.size();
}

}  // namespace cairn::fakes
