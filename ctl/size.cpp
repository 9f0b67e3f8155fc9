// The memory that conversations of a model take, from the model's config.json. Asks no server.
#include <array>
#include <map>
#include <optional>
#include <ostream>

#include "ctl/command.hpp"
#include "ctl/text_table.hpp"

namespace cairn::ctl {
namespace {

constexpr std::uint64_t kTokens = 8'000;
constexpr std::uint64_t kConversations = 100;
// States of Mamba and of linear attention: engines keep them in float32 unless the model says
// otherwise.
constexpr std::uint64_t kStateValueBytes = 4;

enum class Kind : std::uint8_t { full, window, state };

// The memory of a conversation: for each of its tokens, and once at its end.
struct Memory {
  std::array<std::uint64_t, 3> layers{};  // by Kind
  std::uint64_t window_tokens = 0;
  std::uint64_t token_bytes = 0;
  std::uint64_t end_bytes = 0;

  std::uint64_t& of(Kind kind) { return layers[static_cast<std::size_t>(kind)]; }
  std::uint64_t of(Kind kind) const { return layers[static_cast<std::size_t>(kind)]; }
};

// A member of config.json in the names of Hugging Face's transformers. Throws std::out_of_range or
// json::exception with the name.
class Config {
 public:
  explicit Config(const json& document)
      // Models of images and text keep those of the text apart.
      : fields_(document.contains("text_config") ? document.at("text_config") : document) {}

  bool has(const char* name) const { return fields_.contains(name) && !fields_.at(name).is_null(); }
  std::uint64_t number(const char* name) const { return fields_.at(name).get<std::uint64_t>(); }
  std::uint64_t number(const char* name, std::uint64_t fallback) const {
    return has(name) ? number(name) : fallback;
  }
  std::string text(const char* name) const {
    return has(name) ? fields_.at(name).get<std::string>() : "";
  }
  const json& at(const char* name) const { return fields_.at(name); }

 private:
  const json& fields_;
};

std::optional<std::uint64_t> bytes_of_type(const std::string& type) {
  static const std::map<std::string, std::uint64_t> kTypes = {
      {"bfloat16", 2}, {"float16", 2}, {"float32", 4}, {"float8_e4m3fn", 1}};
  const auto at = kTypes.find(type);
  return at == kTypes.end() ? std::nullopt : std::optional(at->second);
}

// Keys and values of a token in one layer. With latent attention (DeepSeek) there is one latent
// vector for both, and the part that carries the position.
std::uint64_t values_of_token(const Config& config) {
  if (config.has("kv_lora_rank")) {
    return config.number("kv_lora_rank") + config.number("qk_rope_head_dim");
  }
  const std::uint64_t heads = config.number("num_attention_heads");
  const std::uint64_t head_size =
      config.has("head_dim") ? config.number("head_dim") : config.number("hidden_size") / heads;
  return 2 * config.number("num_key_value_heads", heads) * head_size;
}

// Bytes of a layer's state. The shapes are those of vLLM's MambaStateShapeCalculator.
std::uint64_t state_bytes(const Config& config, const std::string& type,
                          std::uint64_t value_bytes) {
  const std::uint64_t of_state =
      bytes_of_type(config.text("mamba_ssm_dtype")).value_or(kStateValueBytes);
  if (type == "conv") {  // LFM2
    return (config.number("conv_L_cache") - 1) * config.number("hidden_size") * value_bytes;
  }
  if (type == "linear_attention") {  // Qwen3-Next, Qwen3.5
    const std::uint64_t keys =
        config.number("linear_num_key_heads") * config.number("linear_key_head_dim");
    const std::uint64_t values =
        config.number("linear_num_value_heads") * config.number("linear_value_head_dim");
    return (config.number("linear_conv_kernel_dim") - 1) * (2 * keys + values) * value_bytes +
           values * config.number("linear_key_head_dim") * of_state;
  }
  // Mamba 2: Granite 4, Falcon-H1, Bamba.
  const std::uint64_t inner = config.number("mamba_n_heads") * config.number("mamba_d_head");
  const std::uint64_t groups = 2 * config.number("mamba_n_groups") * config.number("mamba_d_state");
  return (config.number("mamba_d_conv") - 1) * (inner + groups) * value_bytes +
         inner * config.number("mamba_d_state") * of_state;
}

// The type of each layer. Older models name a pattern or nothing.
std::vector<std::string> layer_types(const Config& config) {
  const std::uint64_t layers = config.number("num_hidden_layers");
  if (config.has("layer_types")) return config.at("layer_types").get<std::vector<std::string>>();
  if (config.has("attn_layer_indices")) {
    std::vector<std::string> types(layers, "mamba");
    for (const json& layer : config.at("attn_layer_indices")) types.at(layer) = "attention";
    return types;
  }
  if (config.text("model_type") == "falcon_h1") {  // both in each layer
    std::vector<std::string> types(layers, "mamba");
    types.resize(2 * layers, "attention");
    return types;
  }
  const bool has_window = config.has("sliding_window") &&
                          (!config.has("use_sliding_window") || config.at("use_sliding_window"));
  if (!has_window) return std::vector<std::string>(layers, "full_attention");
  const std::uint64_t pattern = config.number("sliding_window_pattern", 0);
  std::vector<std::string> types;
  for (std::uint64_t layer = 1; layer <= layers; ++layer) {
    const bool is_full = pattern > 0 && layer % pattern == 0;
    types.emplace_back(is_full ? "full_attention" : "sliding_attention");
  }
  return types;
}

Answer<Memory> memory_of(const Config& config, std::uint64_t value_bytes) {
  Memory memory;
  const std::uint64_t token_bytes = values_of_token(config) * value_bytes;
  for (const std::string& type : layer_types(config)) {
    if (type == "full_attention" || type == "attention") {
      ++memory.of(Kind::full);
      memory.token_bytes += token_bytes;
    } else if (type == "sliding_attention" || type == "chunked_attention") {
      ++memory.of(Kind::window);
      memory.window_tokens = type == "sliding_attention" ? config.number("sliding_window")
                                                         : config.number("attention_chunk_size");
      memory.end_bytes += memory.window_tokens * token_bytes;
    } else if (type == "linear_attention" || type == "mamba" || type == "conv") {
      ++memory.of(Kind::state);
      memory.end_bytes += state_bytes(config, type, value_bytes);
    } else {
      return local_failure("a layer of the model has the type '" + type.substr(0, 64) +
                           "', whose size cairnctl does not know");
    }
  }
  return memory;
}

std::string layers_text(const Memory& memory) {
  std::string text;
  const auto add = [&text](std::uint64_t count, const std::string& what) {
    if (count > 0) text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + what;
  };
  add(memory.of(Kind::full), "full");
  add(memory.of(Kind::window), "with a window of " + std::to_string(memory.window_tokens));
  add(memory.of(Kind::state), "with a state");
  return text;
}

Answer<Memory> read_model(const Session& session) {
  auto text = read_all(session.word(0));
  if (!text) return std::move(text).error();
  const json document = json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object()) {
    return local_failure("'" + session.word(0) + "' holds no JSON object");
  }
  try {
    const Config config(document);
    const std::string type =
        config.has("torch_dtype") ? config.text("torch_dtype") : config.text("dtype");
    const std::uint64_t value_bytes = session.arguments.number(
        "value-bytes", bytes_of_type(type.empty() ? "bfloat16" : type).value_or(2));
    return memory_of(config, value_bytes);
  } catch (const std::exception& missing) {
    return local_failure("'" + session.word(0) +
                         "' is no config.json of a model that cairnctl knows: " + missing.what());
  }
}

}  // namespace

Answer<> size(const Session& session) {
  const auto memory = read_model(session);
  if (!memory) return memory.error();
  const std::uint64_t tokens = session.arguments.number("tokens", kTokens);
  const std::uint64_t conversations = session.arguments.number("conversations", kConversations);
  const double bytes = static_cast<double>(conversations) *
                       (static_cast<double>(tokens) * static_cast<double>(memory->token_bytes) +
                        static_cast<double>(memory->end_bytes));
  if (session.print_json({{"full_layers", memory->of(Kind::full)},
                          {"window_layers", memory->of(Kind::window)},
                          {"state_layers", memory->of(Kind::state)},
                          {"window_tokens", memory->window_tokens},
                          {"bytes_of_token", memory->token_bytes},
                          {"bytes_of_end", memory->end_bytes},
                          {"bytes", bytes}})) {
    return {};
  }
  session.out << "layers                 " << layers_text(*memory) << "\n"
              << "each token             " << bytes_text(static_cast<double>(memory->token_bytes))
              << "\n"
              << "end of a conversation  " << bytes_text(static_cast<double>(memory->end_bytes))
              << "\n"
              << conversations << " conversations of " << tokens << " tokens: at most "
              << bytes_text(bytes) << "\n";
  return {};
}

}  // namespace cairn::ctl
