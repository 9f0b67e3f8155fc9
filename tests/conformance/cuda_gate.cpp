#include <cuda_runtime_api.h>

#include <atomic>
#include <stdexcept>

#include "memory/cuda/cuda_stream.hpp"
#include "tests/conformance/stream_gate.hpp"

namespace cairn::conformance {
namespace {

using Opened = std::shared_ptr<std::atomic<bool>>;

// Owns its argument: the gate may be destroyed before the stream gets here.
void wait_until_opened(void* argument) {
  const std::unique_ptr<Opened> opened(static_cast<Opened*>(argument));
  (*opened)->wait(false);
}

// A function on the stream. CUDA and its fake run it in order with the rest.
class HostFunctionGate final : public StreamGate {
 public:
  ~HostFunctionGate() override { open(); }
  void hold(Stream& stream) override {
    auto argument = std::make_unique<Opened>(opened_);
    const cudaError_t launched = cudaLaunchHostFunc(dynamic_cast<CudaStream&>(stream).handle(),
                                                    wait_until_opened, argument.get());
    if (launched != cudaSuccess) throw std::runtime_error(cudaGetErrorString(launched));
    static_cast<void>(argument.release());
  }
  void open() override {
    *opened_ = true;
    opened_->notify_all();
  }

 private:
  const Opened opened_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace

std::unique_ptr<StreamGate> make_cuda_gate() { return std::make_unique<HostFunctionGate>(); }

}  // namespace cairn::conformance
