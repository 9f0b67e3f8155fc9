// Builds a layout, takes memory of an allocator, and sends a block through a server with the
// installed libraries.
//
// usage: consumer SERVER
#include <algorithm>
#include <array>
#include <iostream>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/version.hpp"
#include "client/cache_client.hpp"
#include "layouts/builder.hpp"
#include "memory/alloc/slab_pool.hpp"

namespace {

// 256 bytes per block, so that nothing is padded.
constexpr cairn::LayoutConfig kShape = {.num_blocks = 8,
                                        .num_layers = 2,
                                        .outer_dim = 2,
                                        .page_size = 4,
                                        .inner_dim = 8,
                                        .dtype_width_bytes = 2};
constexpr const char* kCache = "installed";

// The value of a Result or an Answer.
template <class T>
auto must(T answer, const std::string& what) {
  if (!answer) throw std::runtime_error(what + ": " + answer.error().detail);
  return std::move(*answer);
}

void require(bool right, const std::string& what) {
  if (!right) throw std::runtime_error(what);
}

void use_layout() {
  const auto layout = must(cairn::LayoutBuilder()
                               .config(kShape)
                               .layer_separate(cairn::BlockDim::second)
                               .allocate_system()
                               .build(),
                           "layout");
  require(layout.regions().size() == kShape.num_layers, "a region a layer");
  require(cairn::block_bytes(layout.config()) == 256, "a block of 256 bytes");
}

void use_server(const std::string& url, std::span<std::byte> block, std::span<std::byte> room) {
  const auto endpoint = must(cairn::client::Endpoint::parse(url), "endpoint");
  cairn::client::CacheClient client(endpoint);
  must(client.put_cache(kCache, {{"layout",
                                  {{"num_layers", kShape.num_layers},
                                   {"outer_dim", kShape.outer_dim},
                                   {"page_size", kShape.page_size},
                                   {"inner_dim", kShape.inner_dim},
                                   {"dtype_width_bytes", kShape.dtype_width_bytes}}},
                                 {"tiers", {{"pinned", {{"num_blocks", kShape.num_blocks}}}}}}),
       "put cache");
  constexpr std::array kKey = {std::byte{0xaa}, std::byte{0x01}};
  must(client.put_key(kCache, kKey, block, {}), "put key");
  must(client.get_key(kCache, kKey, room), "get key");
  require(std::ranges::equal(block, room), "the bytes that were put");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    require(argc == 2, "usage: consumer SERVER");
    use_layout();
    cairn::SlabPool pool(&cairn::Region::system, {});
    auto block = must(pool.allocate(256), "block");
    auto room = must(pool.allocate(256), "room");
    for (std::size_t i = 0; i < 256; ++i) block.bytes()[i] = static_cast<std::byte>(i * 7);
    use_server(argv[1], block.bytes(), room.bytes());
    std::cout << "cairn " << cairn::kVersion << " is installed and works\n";
    return 0;
  } catch (const std::exception& thrown) {
    std::cerr << "consumer: " << thrown.what() << "\n";
    return 1;
  }
}
