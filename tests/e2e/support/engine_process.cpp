// An engine that loads and stores until it is killed.
//
// usage: e2e_engine_process unix:/PATH CACHE SEED [FILE]
//        FILE: holds its memory, under a lease; otherwise the memory is passed as an open file
#include "tests/e2e/support/engine_process.hpp"

#include <fcntl.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <numeric>
#include <random>
#include <thread>

#include "tests/e2e/support/rest.hpp"

namespace cairn::e2e {
namespace {

using namespace engine_process;

// One thread of the engine: asks for one copy after the other, over its own connection.
class Asker {
 public:
  Asker(const std::string& url, std::string cache, const EngineArea& area, unsigned number,
        unsigned seed)
      : rest_(client::Endpoint::parse(url).value()),
        cache_("/v1/caches/" + std::move(cache)),
        area_(area),
        number_(number),
        random_(seed * kThreads + number) {}

  [[noreturn]] void run() {
    for (;;) {
      const unsigned what = pick(8);
      if (what < 4) {
        load();
      } else if (what < 7) {
        store();
      } else {
        hold();
      }
    }
  }

 private:
  unsigned pick(unsigned below) { return static_cast<unsigned>(random_() % below); }

  // Waits for some loads; others run beside the next request.
  void load() {
    const bool waits = pick(2) == 0;
    if (!waits && !under_way_.empty()) {
      const Reply reply = rest_.get("/v1/transfers/" + under_way_ + "?wait_ms=60000");
      const json state = reply.ok() ? reply.document().at("state") : json();
      if (state == "queued" || state == "running") return;
    }
    std::vector<int> numbers(kSharedKeys);
    std::iota(numbers.begin(), numbers.end(), 0);
    std::ranges::shuffle(numbers, random_);
    numbers.resize(1 + pick(kSharedKeys));
    std::vector<std::uint32_t> blocks(kSharedKeys);
    std::iota(blocks.begin(), blocks.end(),
              first_block() + kStoredBlocks + (waits ? 0 : kSharedKeys));
    std::ranges::shuffle(blocks, random_);
    blocks.resize(numbers.size());
    const Reply begun = copy("/load", numbers, blocks, {{"wait_ms", waits ? 60'000 : 0}});
    if (!waits && begun.ok()) under_way_ = begun.document().at("transfer");
  }
  // Stores from blocks that no other thread writes.
  void store() {
    std::vector<int> numbers(1 + pick(kStoredBlocks));
    const int first = first_stored(number_) + static_cast<int>(pick(kStoredKeys - kStoredBlocks));
    std::iota(numbers.begin(), numbers.end(), first);
    std::vector<std::uint32_t> blocks(numbers.size());
    std::iota(blocks.begin(), blocks.end(), first_block());
    for (std::size_t i = 0; i < numbers.size(); ++i) area_.write(blocks[i], numbers[i]);
    copy("/store", numbers, blocks, {{"wait_ms", 60'000}, {"tier", kTierNames[pick(3)]}});
  }
  // Takes a lease, as if to write or read by itself.
  void hold() {
    if (pick(2) == 0) {
      rest_.post(cache_ + "/allocate", {{"count", 4}, {"tier", "pinned"}, {"lease_ms", kLeaseMs}});
    } else {
      rest_.post(cache_ + "/match", {{"keys", {key(0), key(1)}}, {"lease_ms", kLeaseMs}});
    }
  }
  std::uint32_t first_block() const { return number_ * kThreadBlocks; }
  Reply copy(const std::string& verb, const std::vector<int>& numbers,
             const std::vector<std::uint32_t>& blocks, const json& more) {
    json body = {{"keys", json::array()}, {"agent", kName}, {"blocks", blocks}};
    for (const int n : numbers) body["keys"].push_back(key(n));
    body.update(more);
    const Reply reply = rest_.post(cache_ + verb, body);
    // A request may be too much at once, or so late on a busy machine that its lease has ended. It
    // is never wrong.
    const bool is_expected =
        reply.ok() || reply.status == 429 || reply.status == 503 || reply.status == 507 ||
        (reply.status == 404 && reply.body.find("there is no agent") != std::string::npos);
    if (!is_expected) std::cout << kComplaint << reply.status << " " << reply.body << std::endl;
    return reply;
  }

  Rest rest_;
  const std::string cache_;
  const EngineArea& area_;
  const unsigned number_;
  std::mt19937 random_;
  std::string under_way_;  // the last load that was not waited for
};

int run(const std::vector<std::string>& words) {
  const bool by_path = words.size() > 3;
  const EngineArea area(
      by_path ? FileDescriptor(::open(words[3].c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600))
              : EngineArea::sealed_file(kName, kBlocks),
      kBlocks);
  Rest rest(client::Endpoint::parse(words[0]).value());
  json body = area.registration(by_path ? json{{"path", words[3]}} : json{{"descriptor", 0}});
  if (by_path) body["lease_ms"] = kLeaseMs;
  const Reply made =
      rest.put(std::string("/v1/agents/") + kName, body, by_path ? PassedFiles{} : area.files());
  if (made.status != 201) {
    std::cout << kComplaint << made.status << " " << made.body << std::endl;
    return 1;
  }
  std::cout << kRegistered << std::endl;
  const unsigned seed = static_cast<unsigned>(std::stoul(words[2]));
  std::vector<std::thread> threads;
  for (unsigned number = 0; number < kThreads; ++number) {
    threads.emplace_back([&, number] { Asker(words[0], words[1], area, number, seed).run(); });
  }
  for (std::thread& thread : threads) thread.join();
  return 0;
}

}  // namespace
}  // namespace cairn::e2e

int main(int argc, char** argv) { return cairn::e2e::run({argv + 1, argv + argc}); }
