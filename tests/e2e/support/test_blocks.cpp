#include "tests/e2e/support/test_blocks.hpp"

#include <random>

#include "base/hex.hpp"

namespace cairn::e2e {
namespace {

// Makes the keys and bytes of a number unlike those of its neighbours.
std::mt19937_64 generator_of(int n, std::uint64_t purpose) {
  std::seed_seq seed{static_cast<std::uint64_t>(n), purpose};
  return std::mt19937_64(seed);
}

std::string random_bytes(int n, std::uint64_t purpose, std::size_t count) {
  auto next = generator_of(n, purpose);
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(next());
  return bytes;
}

}  // namespace

json tier_body(std::uint32_t num_blocks, const std::string& layout) {
  if (layout == "fully_contiguous") return {{"num_blocks", num_blocks}, {"layout", layout}};
  return {{"num_blocks", num_blocks}, {"layout", "layer_separate"}, {"block_dim", layout}};
}

json cache_body(const Shape& shape) {
  json tiers = json::object();
  const std::uint32_t counts[] = {shape.device, shape.pinned, shape.disk};
  for (std::size_t i = 0; i < std::size(counts); ++i) {
    if (counts[i] > 0) tiers[kTierNames[i]] = tier_body(counts[i], shape.layout);
  }
  return {{"layout",
           {{"num_layers", kLayers},
            {"outer_dim", kOuter},
            {"page_size", kPageSize},
            {"inner_dim", kInner},
            {"dtype_width_bytes", kDtypeBytes},
            {"alignment", 512}}},
          {"tiers", tiers},
          {"offload", shape.offload}};
}

std::string key(int n) {
  const std::string bytes = random_bytes(n, 1, 16);
  return to_hex(std::as_bytes(std::span(bytes)));
}

std::string block(int n) { return random_bytes(n, 2, kBlockBytes); }

std::string region(int n, std::size_t layer, std::size_t outer) {
  return block(n).substr((layer * kOuter + outer) * kRegionBytes, kRegionBytes);
}

std::vector<std::string> keys(int first, int count) {
  std::vector<std::string> list;
  for (int n = first; n < first + count; ++n) list.push_back(key(n));
  return list;
}

std::string blocks(int first, int count) {
  std::string bytes;
  for (int n = first; n < first + count; ++n) bytes += block(n);
  return bytes;
}

std::string write_body(const json& header, std::string_view blocks) {
  const std::string text = header.dump();
  std::string body;
  for (unsigned shift = 0; shift < 32; shift += 8) {
    body += static_cast<char>((text.size() >> shift) & 0xFFU);
  }
  return body.append(text).append(blocks);
}

std::string from_hex(const std::string& hex) {
  std::string bytes(hex.size() / 2, '\0');
  static_cast<void>(cairn::from_hex(hex, std::as_writable_bytes(std::span(bytes))));
  return bytes;
}

std::string packed(const std::vector<std::string>& hex_keys) {
  std::string bytes;
  for (const std::string& hex : hex_keys) bytes += from_hex(hex);
  return bytes;
}

}  // namespace cairn::e2e
