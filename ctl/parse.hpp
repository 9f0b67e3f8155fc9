#pragma once

#include <optional>
#include <span>
#include <string>

#include "client/http_client.hpp"
#include "ctl/command.hpp"

namespace cairn::ctl {

// Variables of the environment that stand in for options.
struct Environment {
  std::string server;
  std::string token;
  std::string authority;
};

struct Invocation {
  const Command* command = nullptr;  // null: `text` is all that was asked for
  std::string text;                  // the help or the version
  Arguments arguments;
  client::Endpoint server;
  client::HttpOptions http;
};
// The error names the word or option that is wrong.
Result<Invocation> parse(std::span<const char* const> args, const Environment& environment);

}  // namespace cairn::ctl
