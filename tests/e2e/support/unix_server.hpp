#pragma once

#include <gmock/gmock.h>

#include <fstream>
#include <string>
#include <utility>

#include "tests/e2e/support/rest.hpp"
#include "tests/e2e/support/server_process.hpp"
#include "tests/fakes/temp_dir.hpp"

namespace cairn::e2e {

// A server without configured caches that also listens on a Unix socket. It must exit with 0.
struct UnixServer {
  explicit UnixServer(ServerSetup setup = {})
      : server(with_socket(std::move(setup))),
        rest(client::Endpoint::parse("unix:" + socket()).value()) {}
  ~UnixServer() { EXPECT_EQ(server.stop(), 0) << server.output(); }
  UnixServer(const UnixServer&) = delete;
  UnixServer& operator=(const UnixServer&) = delete;

  std::string socket() const { return (folder.path() / "socket").string(); }
  Rest by_tcp() const { return Rest(server.endpoint()); }

  const fakes::TempDir folder;
  ServerProcess server;
  Rest rest;  // over the socket

 private:
  ServerSetup with_socket(ServerSetup setup) const {
    const std::string config = (folder.path() / "config.json").string();
    std::ofstream(config) << R"({"caches": []})";
    setup.flags.insert(setup.flags.end(), {"--unix", socket(), "--config", config});
    return setup;
  }
};

}  // namespace cairn::e2e
