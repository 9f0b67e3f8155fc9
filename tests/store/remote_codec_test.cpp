// Blocks that lie in a store in a smaller form.
#include <gmock/gmock.h>

#include <bit>
#include <random>

#include "tests/store/remote_host.hpp"

namespace cairn::testing {
namespace {

constexpr std::uint64_t kHeader = kRemoteHeaderBytes;
constexpr RemoteTierConfig kEncoded{.codec = Codec::bytes};

LayoutConfig shape() {
  return {
      .num_layers = 1, .outer_dim = 2, .page_size = 16, .inner_dim = 128, .dtype_width_bytes = 2};
}
constexpr std::uint64_t kBlockBytes = 8'192;

// Normal numbers in bf16.
Bytes numbers(const BlockKey& key, std::uint64_t size) {
  std::mt19937 random(std::to_integer<unsigned>(key.view().bytes()[0]));
  std::normal_distribution<float> distribution;
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; i += 2) {
    const auto bits = std::bit_cast<std::uint32_t>(distribution(random));
    bytes[i] = static_cast<std::byte>(bits >> 16);
    bytes[i + 1] = static_cast<std::byte>(bits >> 24);
  }
  return bytes;
}

struct CodecHost : Host {
  explicit CodecHost(MemoryStore& store, const RemoteTierConfig& shared)
      : Host(store, shared, {.pinned = 16}, {}, {}, with_store(), shape()) {}
  void put_numbers(const std::vector<BlockKey>& keys) {
    ASSERT_TRUE(rig.put(*cache, {.keys = keys, .bytes = numbers}));
    settle();
  }
  // The number of blocks that came from the store, each with its own bytes.
  std::size_t fetched(const std::vector<BlockKey>& keys) {
    look(keys);
    settle();
    const std::size_t count = matched(keys);
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_EQ(rig.read(*cache, keys[i]).value(), numbers(keys[i], kBlockBytes));
    }
    return count;
  }
};

TEST(RemoteCodec, BlocksTakeLessRoomInTheStoreAndComeBackUnchanged) {
  MemoryStore store;
  CodecHost one(store, kEncoded);
  one.put_numbers(keys(1, 9));
  ASSERT_EQ(store.values.size(), 9u);
  for (const auto& [name, value] : store.values) EXPECT_LT(value.size(), kHeader + 6'500);
  CodecHost other(store, kEncoded);
  EXPECT_EQ(other.fetched(keys(1, 9)), 9u);
  EXPECT_EQ(other.tier->stats().codec.decoded_blocks, 9u);
}

TEST(RemoteCodec, AHostWithoutACodecReadsWhatAnotherHasEncoded) {
  MemoryStore store;
  CodecHost one(store, kEncoded);
  CodecHost other(store, {});
  one.put_numbers(keys(1, 3));
  EXPECT_EQ(other.fetched(keys(1, 3)), 3u);
  other.put_numbers(keys(4, 2));
  EXPECT_EQ(one.fetched(keys(4, 2)), 2u);
}

TEST(RemoteCodec, NoiseIsStoredAsItIs) {
  MemoryStore store;
  CodecHost one(store, kEncoded);
  one.put(keys(1, 4));
  for (const auto& [name, value] : store.values) EXPECT_EQ(value.size(), kHeader + kBlockBytes);
  EXPECT_EQ(one.tier->stats().codec.noise_blocks, 4u);
  CodecHost other(store, kEncoded);
  other.look(keys(1, 4));
  other.settle();
  EXPECT_EQ(other.rig.read(*other.cache, key(4)).value(), bytes_of(key(4), kBlockBytes));
}

TEST(RemoteCodec, ADamagedValueIsAMissAndLeavesTheStore) {
  MemoryStore store;
  {
    CodecHost one(store, kEncoded);
    one.put_numbers(keys(1, 1));
  }
  const auto [name, good] = *store.values.begin();
  const auto damaged = [&](const std::function<void(std::string&)>& damage) {
    store.values[name] = good;
    damage(store.values[name]);
    CodecHost other(store, {});
    EXPECT_EQ(other.fetched(keys(1, 1)), 0u);
    EXPECT_TRUE(store.values.empty());
    const auto& wrong = other.tier->stats().wrong;
    const auto why = std::ranges::find(wrong, 1u);
    return why == wrong.end() ? "none" : to_string(static_cast<WrongValue>(why - wrong.begin()));
  };
  EXPECT_EQ(damaged([](std::string& value) { value[kHeader] ^= 1; }), "length");
  EXPECT_EQ(damaged([](std::string& value) { value[kHeader + 20] ^= 1; }), "checksum");
  EXPECT_EQ(damaged([](std::string& value) { value.back() ^= 1; }), "checksum");
  EXPECT_EQ(damaged([](std::string& value) { value.pop_back(); }), "checksum");
  EXPECT_EQ(damaged([](std::string& value) { value += 'a'; }), "checksum");
  EXPECT_EQ(damaged([](std::string& value) { value.resize(kHeader); }), "length");
  EXPECT_EQ(damaged([](std::string& value) { value[12] ^= 1; }), "header");
}

TEST(RemoteCodec, HoldersHaveNone) {
  MemoryStore store;
  Host host(store);
  CacheConfig config = small_cache({.pinned = 4});
  config.name = "other";
  config.shared = {.placement = RemoteTierConfig::Placement::holders, .codec = Codec::bytes};
  const auto made = host.rig.manager->create_cache(config);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::impossible);
  EXPECT_THAT(made.error().detail, ::testing::HasSubstr("shared.codec"));
}

}  // namespace
}  // namespace cairn::testing
