#include "replay/options.hpp"

#include <algorithm>
#include <array>
#include <boost/program_options.hpp>
#include <charconv>
#include <ostream>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "base/nearest.hpp"
#include "base/token.hpp"
#include "base/version.hpp"

namespace cairn::replay {
namespace {

namespace po = boost::program_options;

constexpr std::uint32_t kMaxConnections = 1024;  // each is a thread
constexpr std::uint64_t kMaxBlockBytes = std::uint64_t{1} << 30U;
constexpr std::size_t kMaxCapacities = 64;              // rows of a table for people
constexpr double kMaxEngineUs = 1e9;                    // a quarter of an hour for a token
constexpr std::uint64_t kMaxCapacityBlocks = 1U << 28;  // 8 GiB of state about blocks
// No model of a cache with KV groups says yet when such a cache should follow LRU.
constexpr const char* kDefaultPolicies = "lru,class_hazard,adaptive";
constexpr const char* kDefaultGroupPolicies = "lru,class_hazard";

struct ReadWord {
  std::string_view word;
  ReadMode mode;
};
constexpr std::array<ReadWord, 3> kReadModes = {
    {{"read", ReadMode::read}, {"keys", ReadMode::keys}, {"load", ReadMode::load}}};

Error refused(std::string_view option, std::string_view value, std::string_view rule) {
  return {
      ErrorCode::out_of_range,
      std::string("--").append(option).append(" is '").append(value).append("': ").append(rule)};
}

// Numbers that must not be negative: an unsigned option would accept "-1" as a very large one.
struct Texts {
  std::string server;
  std::string generate;
  std::string mode = "slots";
  std::string read_via = "read";
  std::string capacity = "1000,3000,10000,30000";
  std::string policy;  // empty: the default
  std::string hints;
  std::string actions;
  std::string engine;
  std::string columns;
  std::string kv_groups;
};

// Options of a run without a server, which are not used with one.
struct Simulated {
  bool wanted = false;
  SimulationOptions options;
};

struct Number {
  const char* name;
  std::uint64_t* value;
  std::uint64_t least;
  std::uint64_t most;
  const char* help;
};

constexpr std::uint64_t kAny = std::uint64_t{1} << 53U;  // exact in JSON everywhere

std::vector<Number> numbers_of(ReplayOptions& options, std::uint64_t& connections,
                               std::uint64_t& timeout_ms) {
  CacheShape& shape = options.shape;
  return {
      {"connections", &connections, 1, kMaxConnections, "connections, each a thread"},
      {"limit", &options.limit, 0, kAny, "stop after this many requests; 0: none"},
      {"requests", &options.generator.requests, 1, kAny, "number of requests for --generate"},
      {"seed", &options.generator.seed, 0, kAny, "seed for --generate"},
      {"lease-ms", &options.lease_ms, 1, kAny, "length of every lease"},
      {"timeout-ms", &timeout_ms, 1, 3'600'000, "longest wait for a byte of a response"},
      {"device-blocks", &shape.device_blocks, 0, kAny,
       "blocks of the device tier; 0: no such tier"},
      {"pinned-blocks", &shape.pinned_blocks, 0, kAny,
       "blocks of the pinned tier; 0: no such tier"},
      {"disk-blocks", &shape.disk_blocks, 0, kAny, "blocks of the disk tier; 0: no such tier"},
      {"block-bytes", &shape.block_bytes, 1, kMaxBlockBytes,
       "size of a block: a multiple of layers x outer x page x width; determines the inner "
       "dimension"},
      {"num-layers", &shape.num_layers, 1, 1024, "layers of a block"},
      {"outer-dim", &shape.outer_dim, 1, 2, "1, or 2 (keys and values)"},
      {"page-size", &shape.page_size, 1, 65536, "tokens per block"},
      {"dtype-bytes", &shape.dtype_width_bytes, 1, 16, "width of an element"},
      {"alignment", &shape.alignment, 1, kMaxBlockBytes, "alignment of a block's stride, in bytes"},
      {"block-tokens", &options.block_tokens, 1, kAny,
       "tokens per block of the trace, for --simulate and --columns"},
  };
}

po::options_description describe(ReplayOptions& options, Texts& texts, Simulated& simulated,
                                 const std::vector<Number>& numbers,
                                 std::vector<std::int64_t>& parsed) {
  po::options_description described(
      "Replays a request trace against a Cairn server, as a serving frontend would, and "
      "compares\nevery byte read back. Exits 0; 1 if a byte was wrong, a request failed or the "
      "server's\ncounts differ; 2 on a wrong argument.\n\ncairn-replay --server URL (--trace FILE "
      "| --generate KIND) [options]\n\nWithout a server it computes the hit rates of caches of "
      "several sizes:\n\ncairn-replay --simulate (--trace FILE | --generate KIND) [--capacity N,N] "
      "[--policy P,P]\n\nOptions",
      100);
  auto add = described.add_options();
  add("help", "print this and exit")("version", "print the version and exit");
  add("server", po::value(&texts.server)->value_name("URL"),
      "http://127.0.0.1:7070, https://HOST:PORT or unix:/path");
  add("token", po::value(&options.token), "bearer token, if the server requires one");
  add("ca", po::value(&options.tls.authority)->value_name("FILE"),
      "authority of the server's certificate, if not one of the system's");
  add("cert", po::value(&options.tls.certificate)->value_name("FILE"),
      "client certificate, if the server requires one");
  add("key", po::value(&options.tls.key)->value_name("FILE"), "its key");
  add("trace", po::value(&options.trace)->value_name("FILE"),
      "requests, one JSON object per line, or a table with --columns");
  add("columns", po::value(&texts.columns)->value_name("WHAT=NAME,..."),
      "--trace is a comma-separated table. WHAT is timestamp (seconds, or date and time), "
      "input_tokens, output_tokens or session (optional); NAME is the column's name in the first "
      "line. A table has no block ids: a prompt begins with the previous one of its session, and "
      "shares no blocks if there is no session");
  add("generate", po::value(&texts.generate)->value_name("KIND"),
      "generate requests: chat, agents or mixed");
  add("speed", po::value(&options.speed)->default_value(options.speed, "0"),
      "1: as fast as the trace, 2: twice as fast, 0: without waiting");
  add("mode", po::value(&texts.mode)->default_value(texts.mode),
      "how misses are stored: slots (allocate, write, commit) or write (POST write)");
  add("read-via", po::value(&texts.read_via)->default_value(texts.read_via),
      "how hits are read: read (POST read), keys (GET of each) or load (into the memory of an "
      "engine that each connection registers; over a Unix socket, not with --kv-groups)");
  add("cache", po::value(&options.cache)->value_name("NAME"),
      "use this cache, or create it if it does not exist; default: a cache for this run");
  add("device-layout",
      po::value(&options.shape.device_layout)->default_value(options.shape.device_layout),
      "layout of the device tier: layer_separate or fully_contiguous");
  add("offload", po::value(&options.shape.offload)->default_value(options.shape.offload),
      "on_evict, on_commit or never");
  add("disk-codec", po::value(&options.shape.disk_codec)->default_value(options.shape.disk_codec),
      "how blocks lie on disk: none (as they are) or bytes (in a smaller form)");
  add("eviction", po::value(&options.shape.eviction)->value_name("ORDER"),
      "class_hazard or lru; default: the server's");
  add("keep", po::bool_switch(&options.keep),
      "keep the created cache for a later replay with --cache");
  add("json", po::bool_switch(&options.json), "print the result as JSON and nothing else");
  add("simulate", po::bool_switch(&simulated.wanted),
      "no server: print hit rates by capacity and order of eviction, and the best possible");
  add("capacity", po::value(&texts.capacity)->default_value(texts.capacity),
      "with --simulate: cache sizes in blocks");
  add("policy", po::value(&texts.policy)->value_name("P,P"),
      "with --simulate: orders of eviction, of lru, class_hazard and adaptive; default: all. "
      "adaptive is class_hazard as the server uses it, which follows lru while that does better; "
      "not with --kv-groups");
  add("hints", po::value(&texts.hints)->value_name("KIND=SHARE[,right=SHARE]"),
      "hints from reading ahead in the trace: ended=0.5 (never, for half of the ended "
      "conversations) or when=1 (how soon each conversation resumes); right=0.8: a fifth of the "
      "hints are wrong");
  add("actions", po::value(&texts.actions)->value_name("WORD=SHARE[,...]"),
      "actions of an agent framework, from reading ahead in the trace. While a conversation "
      "pauses, "
      "one of: pin=1, retain=1, demote=1, within=1 (a hint how soon it resumes), pause=1 (pin for "
      "up to 5 minutes, else demote); before its next turn: prefetch=0.8 (for four fifths of the "
      "turns); right=0.9: a tenth of them name another conversation or a wrong time");
  add("engine", po::value(&texts.engine)->value_name("token_us=N,block_us=N"),
      "with --server: report how long requests take to their last byte in an engine that computes "
      "a "
      "missed token in token_us and takes in a loaded block in block_us. These times are virtual: "
      "they are added to those of the server's calls, and nobody waits");
  add("kv-groups", po::value(&texts.kv_groups)->value_name("MODEL"),
      "a model whose layers do not all remember the same: gemma (5 of 6 layers have a window of "
      "1,024 tokens), state (3 of 4 layers have a state as large as 6 blocks of the other), or a "
      "JSON file with block_tokens and kv_groups as in a cache's body. --capacity then counts "
      "blocks of all layers as if each had full attention");
  add("picture", po::value(&simulated.options.picture)->value_name("FILE"),
      "with --simulate: draw the table as an SVG");
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    add(numbers[i].name,
        po::value(&parsed[i])->default_value(static_cast<std::int64_t>(*numbers[i].value)),
        numbers[i].help);
  }
  return described;
}

Result<> take_numbers(const std::vector<Number>& numbers, const std::vector<std::int64_t>& parsed) {
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const Number& number = numbers[i];
    const std::int64_t value = parsed[i];
    if (value < static_cast<std::int64_t>(number.least) ||
        value > static_cast<std::int64_t>(number.most)) {
      return refused(
          number.name, std::to_string(value),
          "it must be " + std::to_string(number.least) + " to " + std::to_string(number.most));
    }
    *number.value = static_cast<std::uint64_t>(value);
  }
  return {};
}

std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> words;
  std::istringstream text(list);
  for (std::string word; std::getline(text, word, ',');) words.push_back(word);
  return words;
}

struct NamedNumber {
  std::string word;
  double number = 0;
};

// "when=1,right=0.8"; nullopt if it is of another form, or a number is not from 0 to `most`.
std::optional<std::vector<NamedNumber>> named_numbers_of(const std::string& text, double most) {
  std::vector<NamedNumber> numbers;
  for (const std::string& part : words_of(text)) {
    if (part.empty()) return std::nullopt;
    const std::size_t sign = std::min(part.find('='), part.size() - 1);
    double number = 0;
    const char* const end = part.data() + part.size();
    const auto [read_to, error] = std::from_chars(part.data() + sign + 1, end, number);
    const bool is_right = error == std::errc() && read_to == end && number >= 0 && number <= most;
    if (!is_right) return std::nullopt;
    numbers.push_back({part.substr(0, sign), number});
  }
  return numbers;
}

std::optional<std::vector<NamedNumber>> shares_of(const std::string& text) {
  return named_numbers_of(text, 1);
}

// "ended=0.5", "when=1,right=0.8"
Result<HintOptions> hints_of(const std::string& text) {
  HintOptions hints;
  const auto wrong = [&text] {
    return refused("hints", text,
                   "it must be ended or when, = and a share of 0 to 1, and may go on with ,right= "
                   "and another");
  };
  const auto shares = shares_of(text);
  if (!shares) return wrong();
  for (const auto& [word, share] : *shares) {
    if (word == "ended") {
      hints.ended = share;
    } else if (word == "when") {
      hints.when = share;
    } else if (word == "right") {
      hints.right = share;
    } else {
      return wrong();
    }
  }
  if ((hints.ended > 0) == (hints.when > 0)) return wrong();
  return hints;
}

// "pin=1", "pause=1,prefetch=0.8,right=0.9"
Result<ActionOptions> actions_of(const std::string& text) {
  using enum ActionOptions::AtPause;
  constexpr std::array<std::pair<std::string_view, ActionOptions::AtPause>, 5> kAtPause = {
      {{"pause", fitting},
       {"pin", pin},
       {"retain", retain},
       {"demote", demote},
       {"within", within}}};
  ActionOptions actions;
  const auto wrong = [&text] {
    return refused("actions", text,
                   "it must be one of pause, pin, retain, demote and within, or prefetch, or both, "
                   "each with = and a share of 0 to 1, and may go on with ,right= and another");
  };
  const auto shares = shares_of(text);
  if (!shares) return wrong();
  for (const auto& [word, share] : *shares) {
    const auto at_pause = std::ranges::find(kAtPause, word, [](auto& one) { return one.first; });
    if (at_pause != kAtPause.end()) {
      if (actions.at_pause != none) return wrong();
      actions.at_pause = at_pause->second;
      actions.paused = share;
    } else if (word == "prefetch") {
      actions.prefetch = share;
    } else if (word == "right") {
      actions.right = share;
    } else {
      return wrong();
    }
  }
  if (!actions) return wrong();
  return actions;
}

// "token_us=50,block_us=600"
Result<EngineModel> engine_of(const std::string& text) {
  EngineModel engine;
  const auto wrong = [&text] {
    return refused("engine", text,
                   "it must be token_us= and block_us=, each with a number of 0 to " +
                       std::to_string(static_cast<std::uint64_t>(kMaxEngineUs)));
  };
  const auto numbers = named_numbers_of(text, kMaxEngineUs);
  if (!numbers) return wrong();
  for (const auto& [word, number] : *numbers) {
    if (word == "token_us") {
      engine.token_us = number;
    } else if (word == "block_us") {
      engine.block_us = number;
    } else {
      return wrong();
    }
  }
  return engine;
}

Result<SimulationOptions> simulation_of(const Texts& texts, SimulationOptions options) {
  options.capacities_blocks.clear();
  for (const std::string& word : words_of(texts.capacity)) {
    std::uint64_t blocks = 0;
    const auto [end, wrong] = std::from_chars(word.data(), word.data() + word.size(), blocks);
    if (wrong != std::errc() || end != word.data() + word.size() || blocks < 1 ||
        blocks > kMaxCapacityBlocks) {
      return refused("capacity", word,
                     "it must be whole numbers, 1 to " + std::to_string(kMaxCapacityBlocks) +
                         ", with commas between them");
    }
    options.capacities_blocks.push_back(static_cast<std::uint32_t>(blocks));
  }
  if (options.capacities_blocks.empty() || options.capacities_blocks.size() > kMaxCapacities) {
    return refused("capacity", texts.capacity,
                   "it must be 1 to " + std::to_string(kMaxCapacities) + " numbers");
  }
  options.policies.clear();
  const bool has_groups = !texts.kv_groups.empty();
  const std::string defaults = has_groups ? kDefaultGroupPolicies : kDefaultPolicies;
  for (const std::string& word : words_of(texts.policy.empty() ? defaults : texts.policy)) {
    const auto kind = eviction_kind_from(word);
    if (!kind && word != kAdaptive.name()) {
      return refused("policy", word, "it must be lru, class_hazard or adaptive");
    }
    if (!kind && has_groups) {
      return refused("policy", word, "with --kv-groups it must be lru or class_hazard");
    }
    options.policies.push_back(kind ? SimulatedOrder{*kind} : kAdaptive);
  }
  return options;
}

Result<> take_texts(const Texts& texts, ReplayOptions& options) {
  if (!options.simulation) {
    if (texts.server.empty()) return Error{ErrorCode::missing_field, "--server is missing"};
    auto server = client::Endpoint::parse(texts.server);
    if (!server) return Error{server.error().code, "--server: " + server.error().detail};
    options.server = std::move(*server);
  }
  if (options.trace.empty() == texts.generate.empty()) {
    return Error{ErrorCode::malformed, "one of --trace and --generate is needed"};
  }
  if (!texts.columns.empty()) {
    if (options.trace.empty()) return Error{ErrorCode::malformed, "--columns is for --trace only"};
    auto columns = columns_from(texts.columns);
    if (!columns) return Error{columns.error().code, "--columns: " + columns.error().detail};
    options.columns = std::move(*columns);
  }
  if (!texts.generate.empty()) {
    const auto kind = generator_kind_from(texts.generate);
    if (!kind) return refused("generate", texts.generate, "it must be chat, agents or mixed");
    options.generator.kind = *kind;
  }
  if (texts.mode != "slots" && texts.mode != "write") {
    return refused("mode", texts.mode, "it must be slots or write");
  }
  options.store_mode = texts.mode == "slots" ? StoreMode::slots : StoreMode::write;
  const auto read_mode = std::ranges::find(kReadModes, texts.read_via, &ReadWord::word);
  if (read_mode == kReadModes.end()) {
    return refused("read-via", texts.read_via, "it must be read, keys or load");
  }
  options.read_mode = read_mode->mode;
  const bool is_local = options.simulation || !options.server.unix_path.empty();
  if (options.read_mode == ReadMode::load && (!is_local || !texts.kv_groups.empty())) {
    return refused("read-via", texts.read_via,
                   "it needs --server unix:/path, and does not go with --kv-groups");
  }
  if (!texts.hints.empty()) {
    const auto hints = hints_of(texts.hints);
    if (!hints) return hints.error();
    options.hints = *hints;
  }
  if (!texts.actions.empty()) {
    const auto actions = actions_of(texts.actions);
    if (!actions) return actions.error();
    options.actions = *actions;
    if (!texts.hints.empty() && actions->at_pause == ActionOptions::AtPause::within) {
      return Error{ErrorCode::malformed,
                   "--actions within and --hints are two hints for a request"};
    }
  }
  if (!texts.engine.empty()) {
    const auto engine = engine_of(texts.engine);
    if (!engine) return engine.error();
    if (options.simulation) {
      return Error{ErrorCode::malformed, "--engine is for --server: --simulate has no times"};
    }
    options.engine = *engine;
    options.engine->key_tokens = options.block_tokens;
  }
  return {};
}

Result<> check(const ReplayOptions& options) {
  const CacheShape& shape = options.shape;
  if (!(options.speed >= 0)) {
    return refused("speed", std::to_string(options.speed), "it must be 0 or more");
  }
  if (shape.device_blocks + shape.pinned_blocks + shape.disk_blocks == 0) {
    return Error{
        ErrorCode::out_of_range,
        "--device-blocks, --pinned-blocks and --disk-blocks are all 0: a cache needs a tier"};
  }
  const std::uint64_t unit =
      shape.num_layers * shape.outer_dim * shape.page_size * shape.dtype_width_bytes;
  if (shape.block_bytes % unit != 0) {
    return refused(
        "block-bytes", std::to_string(shape.block_bytes),
        "it must be a multiple of layers x outer x page x width = " + std::to_string(unit));
  }
  return {};
}

}  // namespace

Result<std::optional<ReplayOptions>> parse_options(std::span<const char* const> arguments,
                                                   std::ostream& out) {
  ReplayOptions options;
  Texts texts;
  std::uint64_t connections = options.connections;
  std::uint64_t timeout_ms = options.timeout_ms;
  Simulated simulated;
  const std::vector<Number> numbers = numbers_of(options, connections, timeout_ms);
  std::vector<std::int64_t> parsed(numbers.size());
  const auto described = describe(options, texts, simulated, numbers, parsed);
  try {
    using Style = po::command_line_style::style_t;
    po::variables_map given;
    po::store(po::command_line_parser(static_cast<int>(arguments.size()), arguments.data())
                  .options(described)
                  .positional({})
                  // An abbreviation would change its meaning when an option is added.
                  .style(Style::unix_style & ~Style::allow_guessing)
                  .run(),
              given);
    if (given.contains("help")) {
      out << described;
      return std::optional<ReplayOptions>();
    }
    if (given.contains("version")) {
      out << "cairn-replay " << kVersion << "\n";
      return std::optional<ReplayOptions>();
    }
    po::notify(given);
  } catch (const po::unknown_option& wrong) {
    return Error{ErrorCode::malformed,
                 wrong.what() + did_you_mean_option(wrong.get_option_name(), described)};
  } catch (const po::error& wrong) {
    return Error{ErrorCode::malformed, wrong.what()};
  }
  CAIRN_TRY(take_numbers(numbers, parsed));
  options.connections = static_cast<std::uint32_t>(connections);
  options.timeout_ms = static_cast<std::uint32_t>(timeout_ms);
  if (simulated.wanted) {
    auto simulation = simulation_of(texts, std::move(simulated.options));
    if (!simulation) return std::move(simulation).error();
    options.simulation = std::move(*simulation);
    options.simulation->block_tokens = options.block_tokens;
  }
  CAIRN_TRY(take_texts(texts, options));
  if (!texts.kv_groups.empty()) {
    auto model = kv_model_from(texts.kv_groups, options.block_tokens);
    if (!model) return std::move(model).error();
    options.kv_model = std::move(*model);
    if (options.engine) options.engine->key_tokens = options.kv_model->block_tokens;
    if (options.actions && options.simulation) {
      return Error{ErrorCode::malformed, "--actions with --simulate does not go with --kv-groups"};
    }
  }
  auto token = bearer_token(options.token, "--token");
  if (!token) return std::move(token).error();
  options.token = std::move(*token);
  CAIRN_TRY(check(options));
  return std::optional(std::move(options));
}

}  // namespace cairn::replay
