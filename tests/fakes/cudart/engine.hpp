#pragma once

#include <driver_types.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "tests/fakes/cudart/faults.hpp"

namespace cairn::fakes {

// Streams and events. Each stream is a thread that runs its work in order, with random delays, and
// stops once its device is broken. Unknown handles are refused. Thread-safe.
class Engine {
 public:
  // Any result but cudaSuccess breaks the device.
  using Work = std::function<cudaError_t()>;

  explicit Engine(Faults& faults) : faults_(faults) {}
  void seed(std::uint64_t seed);
  // While held, no stream starts work, like on a hanging device.
  void hold(bool held);

  cudaStream_t create_stream(int device);
  // Runs the remaining work first.
  cudaError_t destroy_stream(cudaStream_t handle);
  std::optional<int> device_of(cudaStream_t handle) const;
  cudaError_t run(cudaStream_t handle, Work work);
  // A host function. It may continue after its device is broken.
  cudaError_t run_on_host(cudaStream_t handle, std::function<void()> function);
  // Waits until all issued work has run.
  cudaError_t finish(cudaStream_t handle);
  void finish_device(int device);
  // Waits for the device's work under way. A broken device starts no other work.
  void settle(int device);
  cudaError_t query(cudaStream_t handle) const;

  cudaEvent_t create_event(int device);
  cudaError_t destroy_event(cudaEvent_t handle);
  std::optional<int> device_of(cudaEvent_t handle) const;
  cudaError_t record(cudaEvent_t event, cudaStream_t stream);
  cudaError_t query(cudaEvent_t handle) const;
  cudaError_t wait_for(cudaStream_t stream, cudaEvent_t event);

  std::size_t streams() const;
  std::size_t events() const;

 private:
  struct Point {
    bool reached = false;
  };
  struct Operation {
    Work work{};                       // may be empty
    std::shared_ptr<Point> awaits{};   // before the work
    std::shared_ptr<Point> reaches{};  // after it
    bool on_host = false;
  };
  struct Stream {
    int device = 0;
    std::mt19937_64 random;
    std::deque<Operation> queue;
    bool working = false;  // host functions do not count
    bool closing = false;
    std::thread thread;
  };
  struct Event {
    int device = 0;
    std::shared_ptr<Point> point{};  // null: never recorded
  };
  void work(Stream& stream);
  cudaError_t push(cudaStream_t handle, Operation operation);
  void await(const std::shared_ptr<Point>& point);

  Faults& faults_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t seed_ = 1;
  bool held_ = false;
  std::map<cudaStream_t, std::unique_ptr<Stream>> streams_;
  std::map<cudaEvent_t, std::unique_ptr<Event>> events_;
};

}  // namespace cairn::fakes
