#include "replay/read_workload.hpp"

#include <utility>

namespace cairn::replay {
namespace {

class ReadWorkload final : public Workload {
 public:
  ReadWorkload(std::vector<PromptRequest> requests, std::string name)
      : requests_(std::move(requests)), name_(std::move(name)) {}

  Result<std::optional<PromptRequest>> next() override {
    if (next_ == requests_.size()) return std::optional<PromptRequest>();
    return std::optional(std::move(requests_[next_++]));
  }
  double fraction_done() const override {
    return requests_.empty() ? 1
                             : static_cast<double>(next_) / static_cast<double>(requests_.size());
  }
  std::string name() const override { return name_; }

 private:
  std::vector<PromptRequest> requests_;
  const std::string name_;
  std::size_t next_ = 0;
};

}  // namespace

Result<std::vector<PromptRequest>> read_all(Workload& workload, std::uint64_t limit) {
  std::vector<PromptRequest> requests;
  while (limit == 0 || requests.size() < limit) {
    auto request = workload.next();
    if (!request) return std::move(request).error();
    if (!request->has_value()) break;
    requests.push_back(std::move(**request));
  }
  return requests;
}

std::unique_ptr<Workload> workload_from(std::vector<PromptRequest> requests, std::string name) {
  return std::make_unique<ReadWorkload>(std::move(requests), std::move(name));
}

}  // namespace cairn::replay
