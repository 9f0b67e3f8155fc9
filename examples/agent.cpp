// An engine that registers its KV area with Cairn as an agent, so that the server copies blocks
// straight into and out of it. It "computes" a pattern, so that every byte can be checked. It
// starts on a layer as soon as the server reports that layer for all blocks.
//
// usage: cairn-example-agent unix:/PATH CACHE NAME BLOCKS ROUNDS
//        stores BLOCKS blocks from its area, then loads them ROUNDS times, each time elsewhere, and
//        prints the speed compared with its own memcpy; CAIRN_TOKEN: the token, if one is needed
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/token.hpp"
#include "client/http_client.hpp"

namespace example {
namespace {

using cairn::FileDescriptor;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

// The server expects each region at a multiple of 512; a whole page costs no more.
constexpr std::uint64_t kRegionAlignment = 4096;
constexpr int kWaitMs = 60'000;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class Server {
 public:
  explicit Server(const std::string& url) : client_(endpoint(url), options()) {}

  json call(std::string_view method, const std::string& target, const std::string& body = "",
            const cairn::PassedFiles& files = {}) {
    const cairn::client::HttpHeader type{"Content-Type", "application/json"};
    const auto bytes = std::as_bytes(std::span(body));
    cairn::client::HttpRequest request{.method = method, .target = target, .files = files};
    if (!body.empty()) {
      request.headers = {&type, 1};
      request.body = {&bytes, 1};
    }
    const auto answer = client_.request(request);
    if (!answer) throw std::runtime_error(target + ": " + answer.error().detail);
    if (answer->status / 100 != 2) throw std::runtime_error(target + ": " + answer->body);
    return answer->body.empty() ? json() : json::parse(answer->body);
  }

 private:
  static cairn::client::Endpoint endpoint(const std::string& url) {
    auto parsed = cairn::client::Endpoint::parse(url);
    if (!parsed) throw std::runtime_error(parsed.error().detail);
    return std::move(*parsed);
  }
  static cairn::client::HttpOptions options() {
    const char* const variable = std::getenv("CAIRN_TOKEN");
    auto token = cairn::bearer_token(variable == nullptr ? "" : variable, "CAIRN_TOKEN");
    if (!token) throw std::runtime_error(token.error().detail);
    return {.timeout_ms = 2 * kWaitMs, .bearer_token = std::move(*token)};
  }

  cairn::client::HttpClient client_;
};

// The engine's KV area: a region per layer, each [block][keys, then values].
class Area {
 public:
  Area(const json& shape, std::uint64_t blocks)
      : shape_(shape),
        blocks_(blocks),
        layers_(shape.at("num_layers")),
        slice_bytes_(shape.at("outer_dim").get<std::uint64_t>() *
                     shape.at("page_size").get<std::uint64_t>() *
                     shape.at("inner_dim").get<std::uint64_t>() *
                     shape.at("dtype_width_bytes").get<std::uint64_t>()),
        region_bytes_((blocks * slice_bytes_ + kRegionAlignment - 1) / kRegionAlignment *
                      kRegionAlignment) {
    FileDescriptor file(::memfd_create("kv", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    const std::uint64_t size_bytes = layers_ * region_bytes_;
    // Sealed: the server refuses memory that could shrink while it uses it.
    if (!file || ::ftruncate(file.get(), static_cast<::off_t>(size_bytes)) != 0 ||
        ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
      throw std::runtime_error("there is no memory for the area");
    }
    void* const data = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_POPULATE, file.get(), 0);
    if (data == MAP_FAILED) throw std::runtime_error("the area cannot be mapped");
    data_ = static_cast<char*>(data);
    files_ = {std::make_shared<const FileDescriptor>(std::move(file))};
  }

  std::uint64_t layers() const { return layers_; }
  std::uint64_t slice_bytes() const { return slice_bytes_; }
  std::uint64_t block_bytes() const { return layers_ * slice_bytes_; }
  char* slice(std::uint64_t layer, std::uint64_t block) const {
    return data_ + layer * region_bytes_ + block * slice_bytes_;
  }
  const cairn::PassedFiles& files() const { return files_; }

  std::string registration() const {
    json regions = json::array();
    for (std::uint64_t layer = 0; layer < layers_; ++layer) {
      regions.push_back({{"kind", "shm"},
                         {"descriptor", 0},
                         {"offset_bytes", layer * region_bytes_},
                         {"size_bytes", region_bytes_}});
    }
    return json({{"num_blocks", blocks_},
                 {"layout", "layer_separate"},
                 {"shape", shape_},
                 {"regions", regions}})
        .dump();
  }

 private:
  const json shape_;
  const std::uint64_t blocks_;
  const std::uint64_t layers_;
  const std::uint64_t slice_bytes_;  // a block's part of a layer
  const std::uint64_t region_bytes_;
  char* data_ = nullptr;
  cairn::PassedFiles files_;
};

// The content of layer `layer` of a prompt's block `block`.
std::vector<std::uint64_t> computed(const Area& area, std::uint64_t block, std::uint64_t layer) {
  std::vector<std::uint64_t> words(area.slice_bytes() / 8);
  std::uint64_t x = block * 0x9E3779B97F4A7C15 + layer * 0xBF58476D1CE4E5B9 + 1;
  for (std::uint64_t& word : words) word = x = x * 6364136223846793005 + 1442695040888963407;
  return words;
}

bool is_right(const Area& area, std::uint64_t layer, const std::vector<std::uint64_t>& blocks) {
  for (std::uint64_t i = 0; i < blocks.size(); ++i) {
    if (std::memcmp(area.slice(layer, blocks[i]), computed(area, i, layer).data(),
                    area.slice_bytes()) != 0) {
      return false;
    }
  }
  return true;
}

std::string copy_body(const std::string& name, const json& keys,
                      const std::vector<std::uint64_t>& blocks, int wait_ms) {
  return json({{"keys", keys}, {"agent", name}, {"blocks", blocks}, {"wait_ms", wait_ms}}).dump();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

int run(const std::vector<std::string>& arguments) {
  const std::string& name = arguments[2];
  const std::uint64_t count = std::stoull(arguments[3]);
  const std::uint64_t rounds = std::stoull(arguments[4]);
  const std::string cache = "/v1/caches/" + arguments[1];
  Server server(arguments[0]);
  json shape = server.call("GET", cache).at("layout");
  shape.erase("alignment");
  // Room for twice the blocks, so that a load can put them elsewhere.
  const Area area(shape, 2 * count);
  server.call("PUT", "/v1/agents/" + name, area.registration(), area.files());

  json keys = json::array();
  std::vector<std::uint64_t> blocks(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    char key[33];
    std::snprintf(key, sizeof key, "a9e27000%024llx", static_cast<unsigned long long>(i));
    keys.push_back(key);
    blocks[i] = i;
    for (std::uint64_t layer = 0; layer < area.layers(); ++layer) {
      std::memcpy(area.slice(layer, i), computed(area, i, layer).data(), area.slice_bytes());
    }
  }
  const json stored = server.call("POST", cache + "/store", copy_body(name, keys, blocks, kWaitMs));
  if (stored.at("state") != "done") throw std::runtime_error(stored.dump());

  // The first load is like an engine's: it waits for one layer at a time.
  for (std::uint64_t i = 0; i < count; ++i) blocks[i] = 2 * count - 1 - i;
  json transfer = server.call("POST", cache + "/load", copy_body(name, keys, blocks, 0));
  const std::string path = "/v1/transfers/" + transfer.at("transfer").get<std::string>();
  bool right = true;
  for (std::uint64_t layer = 0; layer < area.layers(); ++layer) {
    while (transfer.at("layers_done").get<std::uint64_t>() <= layer) {
      const std::string state = transfer.at("state");
      if (state == "failed" || state == "cancelled") throw std::runtime_error(transfer.dump());
      transfer = server.call("GET", path);
    }
    right = right && is_right(area, layer, blocks);
  }

  // Alternates with its own memcpy of the same pieces, so that other load affects both.
  std::vector<char> own(count * area.block_bytes(), 1);
  std::vector<double> ratios;
  double fastest_s = 1e9;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    // Elsewhere each time, in no order: 7919 is a prime larger than any useful count.
    for (std::uint64_t i = 0; i < count; ++i) {
      blocks[i] = (round % 2) * count + (i * 7919 + round) % count;
    }
    const std::string body = copy_body(name, keys, blocks, kWaitMs);
    auto start = Clock::now();
    const json loaded = server.call("POST", cache + "/load", body);
    const double load_s = seconds_since(start);
    if (loaded.at("state") != "done") throw std::runtime_error(loaded.dump());
    for (std::uint64_t layer = 0; layer < area.layers(); ++layer) {
      right = right && is_right(area, layer, blocks);
    }
    for (std::uint64_t& block : blocks) block = (block + count) % (2 * count);
    start = Clock::now();
    for (std::uint64_t layer = 0; layer < area.layers(); ++layer) {
      for (std::uint64_t i = 0; i < count; ++i) {
        std::memcpy(area.slice(layer, blocks[i]),
                    own.data() + i * area.block_bytes() + layer * area.slice_bytes(),
                    area.slice_bytes());
      }
    }
    ratios.push_back(seconds_since(start) / load_s);
    fastest_s = std::min(fastest_s, load_s);
  }
  json report = {{"blocks", count}, {"block_bytes", area.block_bytes()}, {"right", right}};
  if (rounds > 0) {
    report["of_memcpy"] = median(ratios);
    report["gb_per_s"] = 1e-9 * static_cast<double>(count * area.block_bytes()) / fastest_s;
  }
  server.call("DELETE", "/v1/agents/" + name);
  std::cout << report.dump() << std::endl;
  return right ? 0 : 1;
}

}  // namespace
}  // namespace example

int main(int argc, char** argv) {
  try {
    if (argc != 6)
      throw std::runtime_error("usage: cairn-example-agent unix:/PATH CACHE NAME BLOCKS ROUNDS");
    return example::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
