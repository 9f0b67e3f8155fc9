// The bodies of the hot routes: read directly, and read again after another parser has rewritten
// them, like bodies in MessagePack. Both must be accepted or both refused, with the same values.
// The first byte chooses the route.
#include "server/codec/hot_json.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "server/http/message.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace {

using cairn::fuzz::must;

// Limits so low that inputs reach them.
constexpr cairn::MatchLimits kLimits{.max_keys = 6, .max_tokens = 9};
constexpr std::size_t kMaxBlocks = 4;
const cairn::CacheConfig kConfig{
    .name = "c",
    .shape = {},
    .tiers = {},
    .kv_groups = {{.name = "default"}, {.name = "swa", .kind = cairn::KvGroupKind::window}}};

// A body with padding, like the HTTP code's.
class Padded {
 public:
  explicit Padded(std::span<const std::byte> bytes) : size_(bytes.size()) {
    memory_.assign(bytes.size() + cairn::http::kBodyPadding, std::byte{'"'});
    std::copy(bytes.begin(), bytes.end(), memory_.begin());
  }
  std::span<const std::byte> bytes() const { return {memory_.data(), size_}; }

 private:
  std::vector<std::byte> memory_;
  std::size_t size_;
};

std::string text_of(cairn::KeyView key) {
  const auto bytes = key.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string text_of(const cairn::BlockHandle& handle) {
  return std::string(cairn::to_string(handle.tier)) + "." + std::to_string(handle.slot) + "." +
         std::to_string(handle.generation) + "." + std::to_string(handle.kv_group) + " ";
}

std::string text_of(cairn::MatchBody& body) {
  std::string all = std::to_string(body.has_tokens) + std::to_string(body.wait_ms) + " " +
                    std::to_string(body.lease_ms.value_or(7)) + " " + body.salt.value_or("-");
  all += std::to_string(body.have);
  for (cairn::KeyView key : body.keys.views()) all.append(text_of(key)).append("|");
  for (std::uint32_t token : body.tokens) all.append(std::to_string(token)).append(",");
  if (body.onboard) all += cairn::to_string(*body.onboard);
  return all;
}

std::string text_of(const cairn::AllocateBody& body) {
  std::string all = std::to_string(body.count) + " " + std::to_string(body.priority) + " " +
                    std::to_string(body.lease_ms.value_or(7)) +
                    (body.tier ? std::string(cairn::to_string(*body.tier)) : "");
  for (const std::uint32_t count : body.group_counts) all += "+" + std::to_string(count);
  return all;
}

std::string text_of(const cairn::CommitBody& body) {
  std::string all;
  for (const cairn::CommitBlock& block : body.blocks) {
    all += text_of(block.handle) + text_of(block.key.view()) + "|";
    if (block.parent) all += text_of(block.parent->view());
    all += std::to_string(block.ttl_ms.value_or(0)) + ";";
  }
  return all;
}

std::string text_of(const cairn::ReleaseBody& body) {
  std::string all;
  for (const cairn::BlockHandle& handle : body.blocks) all += text_of(handle);
  return all;
}

std::string text_of(const cairn::RenewBody& body) {
  return std::to_string(body.lease_ms.value_or(7));
}

template <class Read>
void compare(const Padded& body, Read&& read) {
  auto original = read(body.bytes());
  auto parsed = cairn::parse_document(body.bytes(), cairn::WireFormat::text);
  if (!parsed) return must(!original, "the document is refused and the text is accepted");
  const std::string text = parsed->dump();
  auto rewritten = read(Padded(std::as_bytes(std::span(text))).bytes());
  must(original.has_value() == rewritten.has_value(), "one is accepted, the other refused");
  if (original) must(text_of(*original) == text_of(*rewritten), "two different requests");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  cairn::fuzz::Input input(data, size);
  const std::uint8_t route = input.byte();
  // An empty body is a renewal without settings, and no document.
  if (input.rest().empty()) return 0;
  const Padded body(input.rest());
  switch (route % 5) {
    case 0: {
      const auto kept = [](auto read, auto&& from) -> cairn::Result<cairn::MatchBody> {
        cairn::MatchBody out;
        if (auto done = read(from, kLimits, out); !done) return done.error();
        return out;
      };
      compare(body, [&](auto bytes) { return kept(cairn::hot_json::read_match, bytes); });
      break;
    }
    case 1:
      compare(body, [](auto bytes) {
        return cairn::hot_json::read_allocate(bytes, cairn::KvGroupNames(kConfig));
      });
      break;
    case 2:
      compare(body, [](auto bytes) {
        return cairn::hot_json::read_commit(
            bytes, {.max_blocks = kMaxBlocks, .groups = cairn::KvGroupNames(kConfig)});
      });
      break;
    case 3:
      compare(body, [](auto bytes) {
        return cairn::hot_json::read_release(
            bytes, {.max_blocks = kMaxBlocks, .groups = cairn::KvGroupNames(kConfig)});
      });
      break;
    default:
      compare(body, cairn::hot_json::read_renew);
  }
  return 0;
}
