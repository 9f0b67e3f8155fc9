#pragma once

#include <optional>
#include <span>
#include <string>

#include "client/http_client.hpp"
#include "ctl/command.hpp"

namespace cairn::ctl {

// Environment variables that replace options.
struct Environment {
  std::string server;
  std::string token;
  std::string authority;
};

struct Invocation {
  const Command* command = nullptr;  // null: only `text` was requested
  std::string text;                  // the help or the version
  Arguments arguments;
  client::Endpoint server;
  client::HttpOptions http;
};
// The error names the word or option that is wrong.
Result<Invocation> parse(std::span<const char* const> args, const Environment& environment);

}  // namespace cairn::ctl
