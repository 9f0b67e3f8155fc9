#include <csignal>
#include <iostream>
#include <span>

#include "base/environment.hpp"
#include "base/standard_files.hpp"
#include "ctl/command.hpp"
#include "ctl/parse.hpp"

namespace cairn::ctl {
namespace {

// An error without a status came from this side: no server responded, or the work failed.
int exit_code(const ClientError& error) {
  for (const char* code :
       {client::kNotConnected, client::kClosedUnanswered, client::kClosedEarly, client::kTimeout}) {
    if (error.status == 0 && error.code == code) return kUnreachable;
  }
  return kRefused;
}

void print_error(const ClientError& error) {
  std::cerr << "cairnctl: ";
  if (error.status != 0) std::cerr << error.status << " ";
  std::cerr << error.code << ": " << error.detail << "\n";
  if (error.retry_after_ms > 0) {
    std::cerr << "cairnctl: the server asks to try again in " << error.retry_after_ms << " ms\n";
  }
}

int run(std::span<const char* const> args) {
  auto asked = parse(args, {.server = variable("CAIRN_SERVER"),
                            .token = variable("CAIRN_TOKEN"),
                            .authority = variable("CAIRN_CA")});
  if (!asked) {
    std::cerr << "cairnctl: " << asked.error().detail << "\n";
    return kBadArguments;
  }
  if (asked->command == nullptr) {
    std::cout << asked->text;
    return kDone;
  }
  client::CacheClient client(asked->server, asked->http);
  const auto done =
      asked->command->run({.client = client, .arguments = asked->arguments, .out = std::cout});
  std::cout << std::flush;
  if (done) return kDone;
  print_error(done.error());
  return exit_code(done.error());
}

}  // namespace
}  // namespace cairn::ctl

int main(int argc, char** argv) {
  cairn::open_standard_files();
  std::signal(SIGPIPE, SIG_IGN);  // a connection that closes is an error of a write
  return cairn::ctl::run({argv, static_cast<std::size_t>(argc)});
}
