// An engine with its KV area in a GPU's memory, layers apart: the server stores 1,000 of its blocks
// and loads them elsewhere in the area, beside one copy of as many bytes by this process itself, in
// turn. Prints one JSON object. bench/gpu runs it with a server on the same device.
//
// usage: cairn-bench-gpu-agent URL BLOCKS ROUNDS
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/hex.hpp"
#include "bench/must.hpp"
#include "client/http_client.hpp"
#include "memory/cuda/cuda_runtime.hpp"
#include "memory/device_runtime.hpp"
#include "memory/exported_memory.hpp"

namespace cairn {
namespace {

using json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr int kWait_ms = 60'000;
constexpr const char* kCachePath = "/v1/caches/gpu-agent";
constexpr const char* kAgent = "gpu-agent";

struct Shape {
  std::uint64_t layers = 0;
  std::uint64_t inner_dim = 0;  // of 16 tokens, keys and values, 2 bytes each

  std::uint64_t slice_bytes() const { return 2 * 16 * inner_dim * 2; }
  std::uint64_t block_bytes() const { return layers * slice_bytes(); }
  json body() const {
    return {{"num_layers", layers},
            {"outer_dim", 2},
            {"page_size", 16},
            {"inner_dim", inner_dim},
            {"dtype_width_bytes", 2}};
  }
};
constexpr Shape kShapes[] = {{.layers = 16, .inner_dim = 64}, {.layers = 32, .inner_dim = 128}};

class Server {
 public:
  explicit Server(const std::string& url) : client_(must(client::Endpoint::parse(url))) {}

  json call(std::string_view method, const std::string& target, const json& body = {}) {
    const std::string text = body.is_null() ? "" : body.dump();
    const client::HttpHeader type{"Content-Type", "application/json"};
    const auto bytes = std::as_bytes(std::span(text));
    client::HttpRequest request{.method = method, .target = target};
    if (!text.empty()) {
      request.headers = {&type, 1};
      request.body = {&bytes, 1};
    }
    const auto answer = client_.request(request);
    if (!answer || answer->status / 100 != 2) {
      std::fprintf(stderr, "cairn-bench-gpu-agent: %s: %s\n", target.c_str(),
                   answer ? answer->body.c_str() : answer.error().detail.c_str());
      std::exit(1);
    }
    return answer->body.empty() ? json() : json::parse(answer->body);
  }

 private:
  client::HttpClient client_;
};

// Room for the blocks twice: they are stored from the first half, and loaded into the second.
class Area {
 public:
  Area(DeviceRuntime& runtime, const Shape& shape, std::uint64_t blocks)
      : shape_(shape),
        blocks_(blocks),
        stream_(must(runtime.create_stream(0))),
        area_(must(runtime.allocate_device(layer_bytes() * shape.layers, {}))),
        plain_(must(runtime.allocate_device(bytes(), {}))),
        other_(must(runtime.allocate_device(bytes(), {}))),
        image_(must(runtime.allocate_pinned(bytes(), {.numa_aware = true}))),
        seen_(must(runtime.allocate_pinned(bytes(), {.numa_aware = true}))) {
    std::uint64_t x = shape.layers;
    for (std::uint64_t at = 0; at < bytes(); at += sizeof x) {
      x = x * 6364136223846793005 + 1442695040888963407;
      std::memcpy(image_.data() + at, &x, sizeof x);
    }
    std::vector<MemoryCopy> copies;
    for (std::uint64_t layer = 0; layer < shape.layers; ++layer) {
      copies.push_back({slice(layer, 0), image_.data() + layer * half_bytes(), half_bytes()});
    }
    copy(copies);
  }

  std::uint64_t bytes() const { return blocks_ * shape_.block_bytes(); }

  json registration() const {
    const ExportedMemory memory = must(area_.share());
    const std::string handle = to_hex(std::as_bytes(std::span(memory.handle)));
    json regions = json::array();
    for (std::uint64_t layer = 0; layer < shape_.layers; ++layer) {
      regions.push_back({{"kind", "cuda_ipc"},
                         {"handle", handle},
                         {"offset_bytes", memory.offset_bytes + layer * layer_bytes()},
                         {"size_bytes", layer_bytes()}});
    }
    return {{"num_blocks", 2 * blocks_},
            {"layout", "layer_separate"},
            {"shape", shape_.body()},
            {"regions", regions}};
  }

  void forget_loaded() {
    for (std::uint64_t layer = 0; layer < shape_.layers; ++layer) {
      must(stream_->zero(slice(layer, blocks_), half_bytes()));
    }
    must(must(stream_->record())->wait());
  }
  // That block `blocks_ + to[i]` holds what block i does.
  bool loaded_are_right(const std::vector<std::uint64_t>& to) {
    std::vector<MemoryCopy> copies;
    for (std::uint64_t layer = 0; layer < shape_.layers; ++layer) {
      copies.push_back({seen_.data() + layer * half_bytes(), slice(layer, blocks_), half_bytes()});
    }
    copy(copies);
    const std::uint64_t size = shape_.slice_bytes();
    for (std::uint64_t layer = 0; layer < shape_.layers; ++layer) {
      for (std::uint64_t i = 0; i < blocks_; ++i) {
        const std::uint64_t row = layer * half_bytes();
        if (std::memcmp(image_.data() + row + i * size, seen_.data() + row + to[i] * size, size)) {
          return false;
        }
      }
    }
    return true;
  }

  // As many bytes in one piece, between memory like that of both sides; seconds.
  double copy_at_once(const std::string& verb, bool from_device) {
    std::byte* const cached = from_device ? plain_.data() : seen_.data();
    const MemoryCopy one = verb == "store" ? MemoryCopy{cached, other_.data(), bytes()}
                                           : MemoryCopy{other_.data(), cached, bytes()};
    const auto begun = Clock::now();
    copy({&one, 1});
    return std::chrono::duration<double>(Clock::now() - begun).count();
  }

 private:
  std::uint64_t half_bytes() const { return blocks_ * shape_.slice_bytes(); }
  std::uint64_t layer_bytes() const { return 2 * half_bytes(); }
  std::byte* slice(std::uint64_t layer, std::uint64_t block) const {
    return area_.data() + layer * layer_bytes() + block * shape_.slice_bytes();
  }
  void copy(std::span<const MemoryCopy> copies) {
    must(stream_->copy(copies));
    must(must(stream_->record())->wait());
  }
  const Shape shape_;
  const std::uint64_t blocks_;
  const std::unique_ptr<Stream> stream_;
  const Region area_;           // [layer][block, of both halves][keys, then values]
  const Region plain_, other_;  // of the copies at once
  const Region image_;          // [layer][block], of the first half
  const Region seen_;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

class Bench {
 public:
  Bench(const std::string& url, std::uint64_t blocks, int rounds)
      : server_(url), runtime_(must(make_cuda_runtime())), blocks_(blocks), rounds_(rounds) {
    for (std::uint64_t i = 0; i < blocks; ++i) {
      char key[33];
      std::snprintf(key, sizeof key, "a9e27001%024llx", static_cast<unsigned long long>(i));
      keys_.push_back(key);
    }
  }

  json run() {
    json rows = json::array();
    for (const Shape& shape : kShapes) {
      Area area(*runtime_, shape, blocks_);
      for (const std::string tier : {"pinned", "device"}) measure(area, shape, tier, rows);
    }
    return {{"agents", rows}, {"bytes_right", right_}};
  }
  bool right() const { return right_; }

 private:
  void measure(Area& area, const Shape& shape, const std::string& tier, json& rows) {
    server_.call("PUT", kCachePath,
                 {{"layout", shape.body()}, {"tiers", {{tier, {{"num_blocks", blocks_}}}}}});
    server_.call("PUT", agent_path(), area.registration());
    std::vector<double> seconds[2], at_once[2];
    // The first warms up.
    for (int round = 0; round <= rounds_; ++round) {
      server_.call("POST", std::string(kCachePath) + "/clear", json::object());
      area.forget_loaded();
      std::vector<std::uint64_t> to(blocks_);
      // In no order: 7919 is a prime above any count of use here.
      for (std::uint64_t i = 0; i < blocks_; ++i) {
        to[i] = (i * 7919 + static_cast<std::uint64_t>(round)) % blocks_;
      }
      for (const bool is_load : {false, true}) {
        const std::string verb = is_load ? "load" : "store";
        const double took = copy(verb, to);
        const double ceiling = area.copy_at_once(verb, tier == "device");
        if (round == 0) continue;
        seconds[is_load].push_back(took);
        at_once[is_load].push_back(ceiling);
      }
      if (!area.loaded_are_right(to)) {
        std::fprintf(stderr, "cairn-bench-gpu-agent: wrong bytes, by way of %s\n", tier.c_str());
        right_ = false;
      }
    }
    for (const bool is_load : {true, false}) {
      std::vector<double> shares;
      for (std::size_t i = 0; i < seconds[is_load].size(); ++i) {
        shares.push_back(at_once[is_load][i] / seconds[is_load][i]);
      }
      rows.push_back(
          {{"way", is_load ? "load" : "store"},
           {"tier", tier},
           {"blocks", blocks_},
           {"block_bytes", shape.block_bytes()},
           {"bytes_per_second", static_cast<double>(area.bytes()) / median(seconds[is_load])},
           {"share", median(shares)}});
    }
    server_.call("DELETE", agent_path());
    server_.call("DELETE", std::string(kCachePath) + "?force=true");
  }

  // The whole request, as an engine waits for it; seconds.
  double copy(const std::string& verb, const std::vector<std::uint64_t>& to) {
    json blocks = json::array();
    for (std::uint64_t i = 0; i < blocks_; ++i) {
      blocks.push_back(verb == "load" ? blocks_ + to[i] : i);
    }
    const json body = {
        {"keys", keys_}, {"agent", kAgent}, {"blocks", blocks}, {"wait_ms", kWait_ms}};
    const auto begun = Clock::now();
    const json told = server_.call("POST", std::string(kCachePath) + "/" + verb, body);
    const double took = std::chrono::duration<double>(Clock::now() - begun).count();
    if (told.at("state") != "done") {
      std::fprintf(stderr, "cairn-bench-gpu-agent: %s\n", told.dump().c_str());
      std::exit(1);
    }
    return took;
  }
  static std::string agent_path() { return std::string("/v1/agents/") + kAgent; }

  Server server_;
  const std::unique_ptr<DeviceRuntime> runtime_;
  const std::uint64_t blocks_;
  const int rounds_;
  std::vector<std::string> keys_;
  bool right_ = true;
};

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: cairn-bench-gpu-agent URL BLOCKS ROUNDS\n");
    return 2;
  }
  cairn::Bench bench(argv[1], std::stoull(argv[2]), std::stoi(argv[3]));
  std::printf("%s\n", bench.run().dump(1).c_str());
  return bench.right() ? 0 : 1;
}
