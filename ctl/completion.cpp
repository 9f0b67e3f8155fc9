// Generated from the table of commands, so that it is always current.
#include <ostream>
#include <set>

#include "ctl/command.hpp"

namespace cairn::ctl {

Answer<> bash_completion(const Session& session) {
  std::set<std::string> first;
  std::map<std::string, std::string> second;
  std::string options_text;
  for (const auto& list : {common_options(), options()}) {
    for (const Option& option : list) options_text += " --" + std::string(option.name);
  }
  for (const Command& command : commands()) {
    const auto blank = command.name.find(' ');
    const std::string word(command.name.substr(0, blank));
    first.insert(word);
    if (blank != std::string_view::npos) {
      second[word] += " " + std::string(command.name.substr(blank + 1));
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

}  // namespace cairn::ctl
