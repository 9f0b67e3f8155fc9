#include "ctl/parse.hpp"

#include <algorithm>
#include <boost/program_options.hpp>
#include <charconv>
#include <sstream>

#include "base/nearest.hpp"
#include "base/quantity.hpp"
#include "base/token.hpp"
#include "base/version.hpp"

namespace cairn::ctl {
namespace {

namespace po = boost::program_options;

constexpr const char* kDefaultServer = "http://127.0.0.1:7070";
constexpr const char* kWords = "words";  // of the positional arguments
// Longer than the longest wait that a server is asked for.
constexpr std::uint32_t kTimeoutMs = 90'000;
constexpr std::uint64_t kMaxNumber = std::uint64_t{1} << 53U;  // exact in JSON everywhere

Error wrong(std::string detail) { return {ErrorCode::malformed, std::move(detail)}; }

void add(po::options_description& out, std::span<const Option> all) {
  for (const Option& option : all) {
    if (option.value == nullptr) {
      out.add_options()(option.name, option.help);
    } else {
      out.add_options()(option.name, po::value<std::string>()->value_name(option.value),
                        option.help);
    }
  }
}

// Removes the command's own words from the front.
const Command* take_command(std::vector<std::string>& words) {
  for (const Command& command : commands()) {
    const auto blank = command.name.find(' ');
    const bool two = blank != std::string_view::npos;
    if (words.empty() || words[0] != command.name.substr(0, blank)) continue;
    if (two && (words.size() < 2 || words[1] != command.name.substr(blank + 1))) continue;
    words.erase(words.begin(), words.begin() + (two ? 2 : 1));
    return &command;
  }
  return nullptr;
}

std::string usage(const Command& command) {
  std::string text = "usage: cairnctl " + std::string(command.name);
  if (!command.words.empty()) text += " " + std::string(command.words);
  return text;
}

Error unknown_command(const std::vector<std::string>& words) {
  if (words.empty()) return wrong("a command is missing; see cairnctl --help");
  std::string second;
  std::vector<std::string_view> first;
  for (const Command& command : commands()) {
    const std::string_view word = command.name.substr(0, command.name.find(' '));
    if (first.empty() || first.back() != word) first.push_back(word);
    if (!command.name.starts_with(words[0] + " ")) continue;
    second += (second.empty() ? "" : ", ") + std::string(command.name.substr(words[0].size() + 1));
  }
  if (second.empty()) {
    const std::string near = did_you_mean(words[0], first);
    return wrong("there is no command '" + words[0] + "'" +
                 (near.empty() ? "; see cairnctl --help" : near));
  }
  return wrong("'" + words[0] + "' takes one of: " + second);
}

// The number in digits.
Result<std::string> read_number(const Option& option, const std::string& text) {
  std::uint64_t number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure == std::errc() && end == text.data() + text.size() && number <= kMaxNumber) {
    return text;
  }
  if (const auto quantity = parse_quantity(option.name, text)) return std::to_string(*quantity);
  const std::string example(quantity_example(option.name));
  return wrong("--" + std::string(option.name) + " is '" + text + "'; it takes a number" +
               (example.empty() ? "" : ", or one with a unit, as in " + example));
}

Result<> take_options(const po::variables_map& given, std::span<const Option> known,
                      const Command* command, Arguments& out) {
  for (const Option& option : known) {
    if (given.count(option.name) == 0) continue;
    const std::string name = option.name;
    if (command != nullptr && command->options.find(name + " ") == std::string_view::npos) {
      return wrong("--" + name + " is not for '" + std::string(command->name) + "'");
    }
    std::string text = option.value == nullptr ? std::string() : given[name].as<std::string>();
    if (option.is_number) {
      auto number = read_number(option, text);
      if (!number) return std::move(number).error();
      text = std::move(*number);
    }
    out.options[name] = std::move(text);
  }
  return {};
}

Result<po::variables_map> read(std::span<const char* const> args) {
  po::options_description all;
  add(all, common_options());
  add(all, options());
  all.add_options()(kWords, po::value<std::vector<std::string>>());
  po::positional_options_description positional;
  positional.add(kWords, -1);
  po::variables_map given;
  try {
    using Style = po::command_line_style::style_t;
    po::store(po::command_line_parser(static_cast<int>(args.size()), args.data())
                  .options(all)
                  .positional(positional)
                  // An abbreviation would change its meaning with the next option.
                  .style(Style::unix_style & ~Style::allow_guessing)
                  .run(),
              given);
  } catch (const po::unknown_option& error) {
    return wrong(error.what() + did_you_mean_option(error.get_option_name(), all));
  } catch (const po::error& error) {
    return wrong(error.what());
  }
  return given;
}

std::string help_text() {
  std::ostringstream out;
  out << "cairnctl inspects and changes a cairn-server and its caches.\n\nUsage: cairnctl "
         "[options] COMMAND ...\n\nCommands:\n";
  for (const Command& command : commands()) {
    std::string left = "  " + std::string(command.name);
    if (!command.words.empty()) left += " " + std::string(command.words);
    left.resize(std::max<std::size_t>(left.size() + 2, 38), ' ');
    out << left << command.help << "\n";
  }
  po::options_description common("\nOptions", 100);
  po::options_description own("Options of commands", 100);
  add(common, common_options());
  add(own, options());
  out << common << "\n"
      << own
      << "\nKeys are hex. Exit codes: 0 done, 1 refused or failed (the server's reason is on "
         "stderr),\n2 wrong arguments, 3 no server responded.\n";
  return std::move(out).str();
}

}  // namespace

Result<Invocation> parse(std::span<const char* const> args, const Environment& environment) {
  auto given = read(args);
  if (!given) return std::move(given).error();
  Invocation asked;
  if (given->count("help") > 0) {
    asked.text = help_text();
    return asked;
  }
  if (given->count("version") > 0) {
    asked.text = "cairnctl " + std::string(kVersion) + "\n";
    return asked;
  }
  Arguments& arguments = asked.arguments;
  if (given->count(kWords) > 0) {
    arguments.words = (*given)[kWords].as<std::vector<std::string>>();
  }
  asked.command = take_command(arguments.words);
  if (asked.command == nullptr) return unknown_command(arguments.words);
  CAIRN_TRY(take_options(*given, common_options(), nullptr, arguments));
  CAIRN_TRY(take_options(*given, options(), asked.command, arguments));
  arguments.json = arguments.has("json");
  const std::size_t least = asked.command->min_words();
  const std::size_t count = arguments.words.size();
  if (count < least || (count > least && !asked.command->open_ended())) {
    return wrong(usage(*asked.command));
  }
  std::string url = arguments.text("server");
  if (url.empty()) url = environment.server.empty() ? kDefaultServer : environment.server;
  auto server = client::Endpoint::parse(url);
  if (!server) return wrong(server.error().detail);
  asked.server = std::move(*server);
  const bool given_token = arguments.has("token");
  auto token = bearer_token(given_token ? arguments.text("token") : environment.token,
                            given_token ? "--token" : "CAIRN_TOKEN");
  if (!token) return std::move(token).error();
  asked.http.bearer_token = std::move(*token);
  asked.http.tls = {
      .authority = arguments.has("ca") ? arguments.text("ca") : environment.authority,
      .certificate = arguments.text("cert"),
      .key = arguments.text("key"),
      .any_certificate = arguments.has("any-certificate"),
  };
  if (arguments.has("cert") != arguments.has("key"))
    return wrong("--cert and --key belong together");
  asked.http.timeout_ms = static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(arguments.number("timeout-ms", kTimeoutMs), 1, UINT32_MAX));
  return asked;
}

}  // namespace cairn::ctl
