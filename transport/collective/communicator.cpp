#include "transport/collective/communicator.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>

#include "base/assert.hpp"

namespace cairn {
namespace {

struct TypeFacts {
  std::string_view name;
  std::uint64_t width_bytes;
};
constexpr std::array<TypeFacts, kNumDataTypes> kTypes = {{{"int8", 1},
                                                          {"uint8", 1},
                                                          {"int32", 4},
                                                          {"uint32", 4},
                                                          {"int64", 8},
                                                          {"uint64", 8},
                                                          {"float16", 2},
                                                          {"float32", 4},
                                                          {"float64", 8},
                                                          {"bfloat16", 2}}};
constexpr std::array<std::string_view, kNumReductions> kReductions = {"sum", "prod", "max", "min",
                                                                      "avg"};

}  // namespace

std::string_view to_string(DataType type) { return kTypes[static_cast<std::size_t>(type)].name; }
std::uint64_t width_bytes(DataType type) {
  return kTypes[static_cast<std::size_t>(type)].width_bytes;
}
std::string_view to_string(Reduction reduction) {
  return kReductions[static_cast<std::size_t>(reduction)];
}

std::string_view kind_of_unique_id(std::string_view unique_id) {
  for (std::string_view kind : {std::string_view("local"), std::string_view("nccl")}) {
    if (unique_id.starts_with(kind) && unique_id.substr(kind.size()).starts_with(':')) return kind;
  }
  return {};
}

JoinStop::JoinStop() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  CAIRN_ASSERT(fd_ >= 0, "a join that cannot be stopped would hold up a shutdown");
}
JoinStop::~JoinStop() { ::close(fd_); }

void JoinStop::stop() {
  const std::uint64_t one = 1;
  // Fails only if the counter is full, and then the fd is readable already.
  [[maybe_unused]] const auto written = ::write(fd_, &one, sizeof one);
}

bool JoinStop::stopped() const {
  // poll() does not read the counter, so the fd stays readable.
  pollfd asked{.fd = fd_, .events = POLLIN, .revents = 0};
  return ::poll(&asked, 1, 0) == 1;
}

}  // namespace cairn
