// Whole blocks through the transfer scheduler, and the device allocator, on a CUDA device (or, for
// a try, another runtime): prints one JSON object. bench/gpu runs it and sets it beside the
// ceilings.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <latch>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "bench/must.hpp"
#include "layouts/builder.hpp"
#include "memory/alloc/caching_allocator.hpp"
#include "memory/cuda/cuda_runtime.hpp"
#include "memory/host/host_runtime.hpp"
#include "transport/transfer/transfer_scheduler.hpp"

namespace cairn {
namespace {

using json = nlohmann::ordered_json;

struct Wishes {
  std::uint32_t blocks = 64;  // of 2 MiB: a job of 128 MiB
  std::uint32_t rounds = 5;   // the best of them counts
  bool host = false;          // a try without CUDA
};

// A page of 16 tokens of Llama 3 8B: 64 pieces of 32 KiB.
LayoutConfig shape(std::uint32_t blocks) {
  return {.num_blocks = blocks,
          .num_layers = 32,
          .outer_dim = 2,
          .page_size = 16,
          .inner_dim = 1024,
          .dtype_width_bytes = 2,
          .alignment = 4096};
}

struct NamedForms {
  const char* name;
  CopyThresholds forms;
};

// One form for everything, whatever the pieces are; and what is chosen by default.
std::vector<NamedForms> all_forms() {
  const auto for_all = [](FormThresholds one) {
    return CopyThresholds{.load = one, .store = one, .device = one};
  };
  return {{"loop", for_all({.batch_least_pieces = UINT32_MAX})},
          {"batch", for_all({.batch_least_pieces = 1})},
          {"rows", for_all({.rows_least_rows = 1})},
          {"kernel", for_all({.kernel_least_pieces = 1, .kernel_most_piece_bytes = 1ull << 40})},
          {"chosen", {}}};
}

void fill(const BlockLayout& layout, std::uint64_t seed) {
  for (const RegionView& region : layout.regions()) {
    for (std::uint64_t i = 0; i + 8 <= region.size_bytes(); i += 8) {
      const std::uint64_t word = (i + (seed << 40)) * 0x9E3779B97F4A7C15u;
      std::memcpy(region.data() + i, &word, 8);
    }
  }
}

// Every piece, whatever the layouts. Both sides are the CPU's.
bool equal(const BlockLayout& a, const BlockLayout& b) {
  const LayoutConfig& config = a.config();
  for (std::uint64_t block = 0; block < config.num_blocks; ++block) {
    for (std::uint64_t layer = 0; layer < config.num_layers; ++layer) {
      for (std::uint64_t outer = 0; outer < config.outer_dim; ++outer) {
        const auto* const left = a.address(a.geometry().locate({block, layer, outer}));
        const auto* const right = b.address(b.geometry().locate({block, layer, outer}));
        if (std::memcmp(left, right, a.geometry().piece_bytes()) != 0) return false;
      }
    }
  }
  return true;
}

class Machine {
 public:
  explicit Machine(const Wishes& wishes)
      : wishes_(wishes),
        runtime_(must(wishes.host ? make_host_runtime({}) : make_cuda_runtime())),
        disk_(make_positional_disk_io()) {}

  json blocks() {
    const BlockLayout source = make(StorageKind::pinned, false);
    const BlockLayout back = make(StorageKind::pinned, false);
    const BlockLayout whole = make(StorageKind::device, false);
    const BlockLayout layers = make(StorageKind::device, true);
    json rows = json::array();
    std::uint64_t seed = 0;
    for (const NamedForms& named : all_forms()) {
      TransferScheduler scheduler(*runtime_, *disk_, clock_, {.copy_forms = named.forms});
      const auto add = [&](const char* what, const BlockLayout& from, const BlockLayout& to) {
        rows.push_back({{"what", what},
                        {"form", named.name},
                        {"bytes_per_second", rate(scheduler, from, to)}});
      };
      // Each ends where the next begins, so that the last tells whether every byte got through all;
      // none of them was there before.
      fill(source, ++seed);
      add("load of contiguous blocks", source, whole);
      add("change to layers on the device", whole, layers);
      std::memset(back.regions()[0].data(), 0, back.regions()[0].size_bytes());
      add("store of layer-separate blocks", layers, back);
      if (!equal(source, back)) wrong("to layers and back", named.name);
      fill(source, ++seed);
      add("load of layer-separate blocks", source, layers);
      add("change from layers on the device", layers, whole);
      std::memset(back.regions()[0].data(), 0, back.regions()[0].size_bytes());
      add("store of contiguous blocks", whole, back);
      if (!equal(source, back)) wrong("from layers and back", named.name);
      rows.push_back({{"what", "load of contiguous and store of layer-separate blocks at once"},
                      {"form", named.name},
                      {"bytes_per_second", duplex(scheduler, source, whole, layers, back)}});
    }
    return rows;
  }

  // Nanoseconds of an allocation and its free, of one size among others.
  double allocation_ns() {
    constexpr std::uint64_t kSize = 64 << 10;
    constexpr int kRounds = 200'000;
    const auto stream = must(runtime_->create_stream(0));
    CachingAllocator allocator(*runtime_, {});
    { const auto first = must(allocator.allocate(kSize, *stream)); }
    const TimePoint begun = clock_.now();
    for (int i = 0; i < kRounds; ++i) {
      const auto buffer = must(allocator.allocate(kSize, *stream));
      if (buffer.empty()) std::abort();
    }
    const auto taken = std::chrono::duration<double, std::nano>(clock_.now() - begun);
    return taken.count() / kRounds;
  }

  std::string_view device() const { return runtime_->devices()[0].name; }
  bool right() const { return right_; }

 private:
  BlockLayout make(StorageKind kind, bool layer_separate) {
    auto shaped = LayoutBuilder().config(shape(wishes_.blocks));
    auto placed = layer_separate ? std::move(shaped).layer_separate(BlockDim::second)
                                 : std::move(shaped).fully_contiguous();
    if (kind == StorageKind::device) {
      return must(std::move(placed).allocate_device(*runtime_, {}).build());
    }
    return must(std::move(placed).allocate_pinned(*runtime_, {.numa_aware = true}).build());
  }

  void begin(TransferScheduler& scheduler, const BlockLayout& from, const BlockLayout& to,
             std::latch& ended) {
    TransferJob job;
    job.source = &from;
    job.destination = &to;
    for (std::uint32_t i = 0; i < wishes_.blocks; ++i) job.pairs.push_back({i, i});
    job.on_complete = [&](JobOutcome outcome) {
      if (outcome.state != JobState::done) {
        std::fprintf(stderr, "cairn-bench-gpu: %s\n", outcome.failures[0].error.detail.c_str());
        std::abort();
      }
      ended.count_down();
    };
    must(scheduler.submit(std::move(job)));
  }

  std::uint64_t bytes() const { return wishes_.blocks * block_bytes(shape(wishes_.blocks)); }

  template <class Work>
  double best(std::uint64_t size_bytes, Work work) {
    double most = 0;
    for (std::uint32_t round = 0; round <= wishes_.rounds; ++round) {
      const TimePoint begun = clock_.now();
      work();
      const std::chrono::duration<double> taken = clock_.now() - begun;
      if (round > 0) most = std::max(most, static_cast<double>(size_bytes) / taken.count());
    }
    return most;
  }

  double rate(TransferScheduler& scheduler, const BlockLayout& from, const BlockLayout& to) {
    return best(bytes(), [&] {
      std::latch ended(1);
      begin(scheduler, from, to, ended);
      ended.wait();
    });
  }

  double duplex(TransferScheduler& scheduler, const BlockLayout& load_from,
                const BlockLayout& load_to, const BlockLayout& store_from,
                const BlockLayout& store_to) {
    return best(2 * bytes(), [&] {
      std::latch ended(2);
      begin(scheduler, load_from, load_to, ended);
      begin(scheduler, store_from, store_to, ended);
      ended.wait();
    });
  }

  void wrong(const char* what, const char* form) {
    std::fprintf(stderr, "cairn-bench-gpu: wrong bytes, %s by %s\n", what, form);
    right_ = false;
  }

  const Wishes wishes_;
  const SystemClock clock_;
  const std::unique_ptr<DeviceRuntime> runtime_;
  const std::unique_ptr<DiskIo> disk_;
  bool right_ = true;
};

int run(int argc, char** argv) {
  Wishes wishes;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word(argv[i]);
    if (word == "--host") {
      wishes.host = true;
    } else if (word == "--quick") {  // small enough for the fake libcudart
      wishes.blocks = 4;
      wishes.rounds = 1;
    } else {
      std::fprintf(stderr, "cairn-bench-gpu [--host] [--quick]: no '%s'\n", argv[i]);
      return 2;
    }
  }
  Machine machine(wishes);
  json result = {{"device", machine.device()}, {"blocks", machine.blocks()}};
  result["caching_allocator_ns"] = machine.allocation_ns();
  result["bytes_right"] = machine.right();
  std::printf("%s\n", result.dump(1).c_str());
  return machine.right() ? 0 : 1;
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) { return cairn::run(argc, argv); }
