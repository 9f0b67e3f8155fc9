#include "replay/kv_model.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace cairn::replay {
namespace {

using nlohmann::json;
using Kind = UsedGroup::Kind;

// The server's limits: see docs/api.md.
constexpr std::size_t kMaxGroups = 16;
constexpr std::uint64_t kMaxBlockTokens = 65'536;
constexpr std::uint64_t kMaxGroupBlockBytes = std::uint64_t{1} << 40U;  // no block is larger
constexpr std::streamsize kMaxFileBytes = 1 << 20;                      // 16 groups take 4 KB

// Of the made-up models. Small blocks: hit rates do not depend on their size, and the bytes of a
// replay must fit a host.
constexpr std::uint64_t kGemmaWindows = 5;
constexpr std::uint32_t kGemmaWindowTokens = 1024;
constexpr std::uint64_t kStateLayers = 3;
constexpr std::uint64_t kStateBlocks = 6;  // full blocks that a state is as large as

constexpr std::array<std::string_view, 3> kKinds = {"full", "window", "state"};

KvModel::Group attention(std::string name, std::uint64_t page_size) {
  return {.name = std::move(name),
          .kind = Kind::full,
          .num_layers = 1,
          .outer_dim = 2,
          .page_size = page_size,
          .inner_dim = 1,
          .dtype_width_bytes = 2};
}

KvModel gemma(std::uint32_t block_tokens) {
  KvModel model{.name = "gemma", .block_tokens = block_tokens};
  model.groups.push_back(attention("full", block_tokens));
  for (std::uint64_t i = 0; i < kGemmaWindows; ++i) {
    KvModel::Group window = attention("window-" + std::to_string(i), block_tokens);
    window.kind = Kind::window;
    window.window_tokens = kGemmaWindowTokens;
    model.groups.push_back(std::move(window));
  }
  return model;
}

KvModel state(std::uint32_t block_tokens) {
  KvModel model{.name = "state", .block_tokens = block_tokens};
  model.groups.push_back(attention("full", block_tokens));
  const std::uint64_t state_bytes = kStateBlocks * model.groups.front().block_bytes();
  model.groups.push_back({.name = "state",
                          .kind = Kind::state,
                          .num_layers = kStateLayers,
                          .outer_dim = 1,
                          .page_size = 1,
                          .inner_dim = state_bytes / kStateLayers / 4,
                          .dtype_width_bytes = 4});
  return model;
}

Error wrong(const std::string& field, const std::string& rule) {
  return {ErrorCode::malformed, field + " " + rule};
}

// A whole number from 1 to `most` in `object`.
Result<std::uint64_t> number(const json& object, const std::string& path, const char* name,
                             std::uint64_t most) {
  const std::string field = path.empty() ? name : path + "." + name;
  const auto found = object.find(name);
  if (found == object.end()) return wrong(field, "is missing");
  if (!found->is_number_unsigned() || found->get<std::uint64_t>() < 1 ||
      found->get<std::uint64_t>() > most) {
    return wrong(field,
                 "is " + found->dump() + ", not a whole number from 1 to " + std::to_string(most));
  }
  return found->get<std::uint64_t>();
}

Result<KvModel::Group> group_from(const json& object, const std::string& path,
                                  std::uint64_t block_tokens) {
  if (!object.is_object()) return wrong(path, "is not an object");
  KvModel::Group group;
  const auto name = object.find("name");
  if (name == object.end() || !name->is_string() || name->get<std::string>().empty()) {
    return wrong(path + ".name", "is not a name");
  }
  group.name = name->get<std::string>();
  const auto kind = object.find("kind");
  const bool is_word = kind != object.end() && kind->is_string();
  const auto known =
      is_word ? std::ranges::find(kKinds, kind->get_ref<const std::string&>()) : kKinds.end();
  if (known == kKinds.end()) return wrong(path + ".kind", "is not full, window or state");
  group.kind = static_cast<Kind>(known - kKinds.begin());
  if (group.kind == Kind::window) {
    auto tokens = number(object, path, "window_tokens", ~std::uint32_t{0});
    if (!tokens) return std::move(tokens).error();
    group.window_tokens = static_cast<std::uint32_t>(*tokens);
  } else if (object.contains("window_tokens")) {
    return wrong(path + ".window_tokens", "is given, but the kind is not window");
  }
  const auto layout = object.find("layout");
  if (layout == object.end() || !layout->is_object()) {
    return wrong(path + ".layout", "is not an object");
  }
  struct Field {
    const char* name;
    std::uint64_t* value;
    std::uint64_t most;
  };
  std::uint64_t bytes = 1;
  for (const Field& field :
       {Field{"num_layers", &group.num_layers, 1024}, Field{"outer_dim", &group.outer_dim, 1024},
        Field{"page_size", &group.page_size, kMaxBlockTokens},
        Field{"inner_dim", &group.inner_dim, std::uint64_t{1} << 24U},
        Field{"dtype_width_bytes", &group.dtype_width_bytes, 16}}) {
    auto value = number(*layout, path + ".layout", field.name, field.most);
    if (!value) return std::move(value).error();
    *field.value = *value;
    if (*value > kMaxGroupBlockBytes / bytes)
      return wrong(path + ".layout", "makes a block of over 1 TiB");
    bytes *= *value;
  }
  if (group.kind == Kind::state && group.page_size != 1) {
    return wrong(path + ".layout.page_size", "is not 1, but a state's block is one state");
  }
  if (group.kind != Kind::state && group.page_size % block_tokens != 0) {
    return wrong(path + ".layout.page_size",
                 "is not a multiple of block_tokens, which is " + std::to_string(block_tokens));
  }
  return group;
}

Result<KvModel> model_from(const json& object) {
  if (!object.is_object()) return wrong("it", "is not a JSON object");
  KvModel model;
  auto block_tokens = number(object, {}, "block_tokens", kMaxBlockTokens);
  if (!block_tokens) return std::move(block_tokens).error();
  model.block_tokens = static_cast<std::uint32_t>(*block_tokens);
  const auto groups = object.find("kv_groups");
  if (groups == object.end() || !groups->is_array() || groups->empty() ||
      groups->size() > kMaxGroups) {
    return wrong("kv_groups", "is not a list of 1 to " + std::to_string(kMaxGroups) + " groups");
  }
  for (const json& item : *groups) {
    const std::string path = "kv_groups[" + std::to_string(model.groups.size()) + "]";
    auto group = group_from(item, path, *block_tokens);
    if (!group) return std::move(group).error();
    if (std::ranges::find(model.groups, group->name, &KvModel::Group::name) != model.groups.end()) {
      return wrong(path + ".name", "is " + group->name + ", as that of another group");
    }
    model.groups.push_back(std::move(*group));
  }
  if (std::ranges::none_of(model.groups,
                           [](const auto& group) { return group.kind == Kind::full; })) {
    // Without one, nobody knows how large a layer of full attention would be.
    return wrong("kv_groups", "has no group of the kind full");
  }
  return model;
}

// Cuts each id into several.
class FinerWorkload final : public Workload {
 public:
  FinerWorkload(std::unique_ptr<Workload> workload, const FinerKeys& keys)
      : workload_(std::move(workload)),
        key_tokens_(keys.key_tokens),
        each_(keys.block_tokens / keys.key_tokens) {}

  Result<std::optional<PromptRequest>> next() override {
    auto request = workload_->next();
    if (!request || !request->has_value()) return request;
    std::vector<std::uint64_t> ids;
    ids.reserve((*request)->hash_ids.size() * each_);
    for (const std::uint64_t id : (*request)->hash_ids) {
      for (std::uint64_t i = 0; i < each_; ++i) ids.push_back(id * each_ + i);
    }
    // The last block may have room for more tokens.
    const std::uint64_t tokens = (*request)->input_tokens;
    const std::uint64_t begun = (tokens + key_tokens_ - 1) / key_tokens_;
    if (tokens > 0 && begun < ids.size()) ids.resize(begun);
    (*request)->hash_ids = std::move(ids);
    return request;
  }
  double fraction_done() const override { return workload_->fraction_done(); }
  std::string name() const override { return workload_->name(); }

 private:
  std::unique_ptr<Workload> workload_;
  const std::uint64_t key_tokens_;
  const std::uint64_t each_;
};

}  // namespace

std::uint64_t KvModel::as_if_full_bytes() const {
  const auto full = std::ranges::find(groups, Kind::full, &Group::kind);
  const std::uint64_t layer_bytes =
      full->block_bytes() / full->num_layers / (full->page_size / block_tokens);
  std::uint64_t bytes = 0;
  for (const Group& group : groups) {
    // A layer of attention has the same bytes a token whatever it remembers.
    bytes += group.kind == Kind::state ? group.num_layers * layer_bytes
                                       : group.block_bytes() / (group.page_size / block_tokens);
  }
  return bytes;
}

GroupUse KvModel::use() const {
  std::vector<UsedGroup> used;
  for (const Group& group : groups) {
    const std::uint64_t keys = group.kind == Kind::state ? 1 : group.page_size / block_tokens;
    used.push_back({.kind = group.kind,
                    .keys_per_block = static_cast<std::uint32_t>(keys),
                    .window_tokens = group.window_tokens,
                    .block_bytes = group.block_bytes()});
  }
  return {block_tokens, std::move(used)};
}

json KvModel::body() const {
  json list = json::array();
  for (const Group& group : groups) {
    json item = {{"name", group.name},
                 {"kind", kKinds[static_cast<std::size_t>(group.kind)]},
                 {"layout",
                  {{"num_layers", group.num_layers},
                   {"outer_dim", group.outer_dim},
                   {"page_size", group.page_size},
                   {"inner_dim", group.inner_dim},
                   {"dtype_width_bytes", group.dtype_width_bytes}}}};
    if (group.kind == Kind::window) item["window_tokens"] = group.window_tokens;
    list.push_back(std::move(item));
  }
  return {{"block_tokens", block_tokens}, {"kv_groups", std::move(list)}};
}

Result<KvModel> kv_model_from(const std::string& word, std::uint64_t block_tokens) {
  if (word == "gemma" || word == "state") {
    if (block_tokens > kMaxBlockTokens) {
      return Error{ErrorCode::out_of_range, "--kv-groups " + word + " takes --block-tokens up to " +
                                                std::to_string(kMaxBlockTokens)};
    }
    const auto tokens = static_cast<std::uint32_t>(block_tokens);
    return word == "gemma" ? gemma(tokens) : state(tokens);
  }
  const auto refused = [&word](const std::string& why) {
    return Error{ErrorCode::malformed, "--kv-groups " + word + ": " + why};
  };
  std::ifstream file(word, std::ios::binary);
  std::string text(static_cast<std::size_t>(kMaxFileBytes) + 1, '\0');
  if (!file || !(file.read(text.data(), kMaxFileBytes + 1), file.eof())) {
    return refused(file ? "it is over 1 MiB long"
                        : "no such file; it takes gemma, state or a file with a cache's kv_groups");
  }
  text.resize(static_cast<std::size_t>(file.gcount()));
  const json object = json::parse(text, nullptr, false);
  if (object.is_discarded()) return refused("not JSON");
  auto model = model_from(object);
  if (!model) return refused(model.error().detail);
  model->name = word;
  return model;
}

Result<std::unique_ptr<Workload>> with_finer_keys(std::unique_ptr<Workload> workload,
                                                  const FinerKeys& keys) {
  if (keys.block_tokens % keys.key_tokens != 0) {
    return Error{ErrorCode::impossible,
                 "the trace has blocks of " + std::to_string(keys.block_tokens) +
                     " tokens (--block-tokens), which is no multiple of the block_tokens of "
                     "--kv-groups, " +
                     std::to_string(keys.key_tokens)};
  }
  if (keys.block_tokens == keys.key_tokens) return workload;
  return std::unique_ptr<Workload>(std::make_unique<FinerWorkload>(std::move(workload), keys));
}

}  // namespace cairn::replay
