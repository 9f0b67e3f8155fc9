#include <string_view>
#include <utility>

#include "metrics/families.hpp"
#include "metrics/parts.hpp"

namespace cairn {

void add_codecs(std::vector<prometheus::MetricFamily>& out, const MetricsInput& input) {
  using Builder = MetricFamilyBuilder;
  auto blocks = Builder::counter(
      {"cairn_codec_blocks_total",
       "Blocks that went to a tier with a codec: encoded; noise: left as they were, because they "
       "do not shrink; slow: left as they were, because decoding is slower than the tier. decoded: "
       "those that came back. The tier shared_far is the second of two stores."});
  auto bytes = Builder::counter(
      {"cairn_codec_bytes_total", "Bytes of the encoded blocks, before (plain) and after it."});
  auto rates = Builder::gauge({"cairn_codec_bytes_per_second",
                               "How fast blocks of the tier are decoded, and how fast the tier is "
                               "read; 0: not known yet."});
  struct Place {
    std::string_view cache;
    std::string_view tier;
  };
  const auto add_codec = [&](const Place& place, const MediumCodec::Stats& codec) {
    if (codec.codec == Codec::none) return;
    const auto add = [&](Builder& family, const std::pair<std::string_view, std::string_view>& what,
                         auto value) {
      family.add({{"cache", place.cache}, {"tier", place.tier}, what}, value);
    };
    add(blocks, {"result", "encoded"}, codec.encoded_blocks);
    add(blocks, {"result", "noise"}, codec.noise_blocks);
    add(blocks, {"result", "slow"}, codec.slow_blocks);
    add(blocks, {"result", "decoded"}, codec.decoded_blocks);
    add(bytes, {"form", "plain"}, codec.plain_bytes);
    add(bytes, {"form", "encoded"}, codec.encoded_bytes);
    add(rates, {"of", "decode"}, codec.decoded_bytes_per_s);
    add(rates, {"of", "read"}, codec.read_bytes_per_s);
  };
  for (const CacheStats& cache : input.caches) {
    add_codec({.cache = cache.name, .tier = "disk"}, cache.disk_codec);
  }
  if (input.shared != nullptr) {
    for (const RemoteTierStats& tier : input.shared->tiers) {
      add_codec({.cache = tier.cache, .tier = "shared"}, tier.codec);
      add_codec({.cache = tier.cache, .tier = "shared_far"}, tier.far_codec);
    }
  }
  for (Builder* builder : {&blocks, &bytes, &rates}) out.push_back(std::move(*builder).take());
}

}  // namespace cairn
