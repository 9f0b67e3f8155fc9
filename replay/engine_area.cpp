#include "replay/engine_area.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/file_descriptor.hpp"
#include "base/hex.hpp"
#include "base/random.hpp"
#include "client/http_wire.hpp"

namespace cairn::replay {
namespace {

using client::Answer;
using client::ClientError;
using nlohmann::json;

constexpr client::HttpHeader kJsonType{"Content-Type", "application/json"};

std::string fresh_agent() {
  std::array<std::byte, 6> bytes{};
  RandomBytes().fill(bytes);
  return "replay-" + to_hex(bytes);
}

ClientError no_memory(const char* call) {
  return {0, "no_memory", std::string(call) + ": " + std::strerror(errno)};
}

}  // namespace

EngineArea::EngineArea(const TargetCache& target, std::size_t blocks)
    : cache_(target.name),
      name_(fresh_agent()),
      block_bytes_(target.block_bytes),
      blocks_(blocks) {}

EngineArea::~EngineArea() {
  if (!memory_.empty()) ::munmap(memory_.data(), memory_.size());
}

Answer<std::unique_ptr<EngineArea>> EngineArea::registered(client::CacheClient& client,
                                                           const TargetCache& target) {
  const std::size_t blocks = std::max<std::size_t>(kMaxBytes / target.block_bytes, 1);
  std::unique_ptr<EngineArea> engine(new EngineArea(target, blocks));
  const std::size_t size_bytes = blocks * target.block_bytes;
  FileDescriptor file(::memfd_create("replay", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) return no_memory("memfd_create");
  // The server refuses memory that could shrink while it uses it.
  const bool is_sized = ::ftruncate(file.get(), static_cast<::off_t>(size_bytes)) == 0 &&
                        ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0;
  if (!is_sized) return no_memory("ftruncate");
  // The pages are there from the start, as an engine's are: the first load must not pay for them.
  void* const data =
      ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file.get(), 0);
  if (data == MAP_FAILED) return no_memory("mmap");
  engine->memory_ = {static_cast<std::byte*>(data), size_bytes};

  const json body = {
      {"num_blocks", blocks},
      {"layout", "fully_contiguous"},
      {"shape", target.layout},
      {"regions",
       {{{"kind", "shm"}, {"descriptor", 0}, {"offset_bytes", 0}, {"size_bytes", size_bytes}}}}};
  const std::string text = body.dump();
  const auto bytes = std::as_bytes(std::span(text));
  const std::string path = "/v1/agents/" + engine->name_;
  auto response =
      client.http().request({.method = "PUT",
                             .target = path,
                             .headers = {&kJsonType, 1},
                             .body = {&bytes, 1},
                             .files = {std::make_shared<const FileDescriptor>(std::move(file))}});
  if (!response) return std::move(response).error();
  if (response->status / 100 != 2) return client::problem_from(response->status, response->body);
  return engine;
}

Answer<std::span<const std::byte>> EngineArea::load(client::CacheClient& client,
                                                    client::KeyList keys, std::uint64_t wait_ms) {
  json names = json::array(), blocks = json::array();
  for (std::size_t i = 0; i < keys.size(); ++i) {
    names.push_back(to_hex(keys[i]));
    blocks.push_back(i);
  }
  const json body = {{"keys", std::move(names)},
                     {"agent", name_},
                     {"blocks", std::move(blocks)},
                     {"wait_ms", wait_ms}};
  const std::string path = "/v1/caches/" + client::percent_encoded(cache_) + "/load";
  auto answer = client.call("POST", path, body);
  if (!answer) return std::move(answer).error();
  const auto state = client::field_from<std::string>(*answer, "state");
  if (!state) return state.error();
  if (*state != "done") return ClientError{0, "not_loaded", "the load is " + *state};
  return std::span<const std::byte>(memory_).first(keys.size() * block_bytes_);
}

}  // namespace cairn::replay
