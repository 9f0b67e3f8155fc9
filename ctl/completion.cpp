// Generated from the table of commands, so that it is always current.
#include <ostream>
#include <set>

#include "ctl/command.hpp"

namespace cairn::ctl {
namespace {

// In the two words that a command may have.
struct Words {
  explicit Words(std::string_view name)
      : first(name.substr(0, name.find(' '))),
        second(name.size() > first.size() ? name.substr(first.size() + 1) : "") {}
  std::string_view first;
  std::string_view second;
};

// A word of fish in single quotes.
std::string quoted(std::string_view text) {
  std::string all = "'";
  for (const char c : text) all.append(c == '\'' || c == '\\' ? "\\" : "").push_back(c);
  return all + "'";
}

}  // namespace

Answer<> bash_completion(const Session& session) {
  std::set<std::string> first;
  std::map<std::string, std::string> second;
  std::string options_text;
  for (const auto& list : {common_options(), options()}) {
    for (const Option& option : list) options_text += " --" + std::string(option.name);
  }
  for (const Command& command : commands()) {
    const Words words(command.name);
    first.emplace(words.first);
    if (!words.second.empty()) {
      second[std::string(words.first)] += " " + std::string(words.second);
    }
  }
  std::ostream& out = session.out;
  out << "# Completion of cairnctl for bash: source <(cairnctl completion bash)\n"
         "_cairnctl() {\n"
         "  local word=${COMP_WORDS[COMP_CWORD]} words=() i\n"
         "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
         "    case ${COMP_WORDS[i]} in\n";
  for (const auto& list : {common_options(), options()}) {
    for (const Option& option : list) {
      if (option.value != nullptr) out << "      --" << option.name << ") ((++i)) ;;\n";
    }
  }
  out << "      -*) ;;\n"
         "      *) words+=(\"${COMP_WORDS[i]}\") ;;\n"
         "    esac\n"
         "  done\n"
         "  local choices=\n"
         "  if [[ $word == -* ]]; then\n"
         "    choices='"
      << options_text
      << "'\n"
         "  elif ((${#words[@]} == 0)); then\n"
         "    choices='";
  for (const std::string& word : first) out << " " << word;
  out << "'\n"
         "  elif ((${#words[@]} == 1)); then\n"
         "    case ${words[0]} in\n";
  for (const auto& [word, choices] : second) {
    out << "      " << word << ") choices='" << choices << "' ;;\n";
  }
  out << "    esac\n"
         "  fi\n"
         "  COMPREPLY=($(compgen -W \"$choices\" -- \"$word\"))\n"
         "}\n"
         "complete -o default -F _cairnctl cairnctl\n";
  return {};
}

Answer<> zsh_completion(const Session& session) {
  // bash's functions run in zsh; most people's zsh has its own completion on already.
  session.out << "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }\n"
                 "autoload -Uz bashcompinit && bashcompinit\n";
  return bash_completion(session);
}

Answer<> fish_completion(const Session& session) {
  std::ostream& out = session.out;
  out << "# Completion of cairnctl for fish: cairnctl completion fish | source\n"
         "complete -c cairnctl -f\n";
  std::set<std::string_view> seen;
  for (const Command& command : commands()) {
    const Words words(command.name);
    if (seen.insert(words.first).second) {
      out << "complete -c cairnctl -n __fish_use_subcommand -a " << words.first;
      if (words.second.empty()) out << " -d " << quoted(command.help);
      out << "\n";
    }
    if (words.second.empty()) continue;
    out << "complete -c cairnctl -n '__fish_seen_subcommand_from " << words.first
        << "; and test (count (commandline -opc)) -eq 2' -a " << words.second << " -d "
        << quoted(command.help) << "\n";
  }
  for (const auto& list : {common_options(), options()}) {
    for (const Option& option : list) {
      out << "complete -c cairnctl -l " << option.name << (option.value != nullptr ? " -r" : "")
          << " -d " << quoted(option.help) << "\n";
    }
  }
  return {};
}

}  // namespace cairn::ctl
