#include "tests/e2e/support/server_group.hpp"

#include <fstream>
#include <numeric>

namespace cairn::e2e {

std::string_view to_string(ServerGroup::Collective collective) {
  return collective == ServerGroup::Collective::local ? "local" : "nccl";
}

std::vector<ServerGroup::Collective> ServerGroup::collectives() {
#ifdef CAIRN_FAKE_NCCL_FOLDER
  return {Collective::local, Collective::nccl};
#else
  return {Collective::local};
#endif
}

ServerGroup::ServerGroup(const Setup& setup, json settings) {
  settings["collective"] = to_string(setup.collective);
  ServerSetup server{.flags = {"--runtime", "host"}};
#ifdef CAIRN_FAKE_NCCL_FOLDER
  if (setup.collective == Collective::nccl) {
    server = {.flags = {"--runtime", "cuda"},
              .environment = {"LD_LIBRARY_PATH=" CAIRN_FAKE_NCCL_FOLDER}};
  }
#endif
  const auto config = folder_.path() / "config.json";
  std::ofstream(config) << json({{"caches", json::array()}, {"groups", settings}});
  server.flags.insert(server.flags.end(), {"--config", config.string()});
  for (std::size_t rank = 0; rank < setup.world_size; ++rank) {
    ServerSetup mine = server;
    if (rank == 0) {
      mine.environment.insert(mine.environment.end(), setup.environment.begin(),
                              setup.environment.end());
    }
    Rank& one = ranks_.emplace_back();
    one.server = std::make_unique<ServerProcess>(mine);
    one.rest = std::make_unique<Rest>(one.server->endpoint());
  }
}

Reply ServerGroup::invite(const std::string& group, std::size_t world_size) {
  return ranks_[0].rest->post(
      "/v1/groups", {{"name", group}, {"rank", 0}, {"world_size", world_size}, {"device_id", 0}});
}

Reply ServerGroup::join(const std::string& group, std::size_t rank, const std::string& unique_id,
                        std::size_t world_size) {
  return ranks_[rank].rest->post("/v1/groups", {{"name", group},
                                                {"rank", rank},
                                                {"world_size", world_size},
                                                {"device_id", 0},
                                                {"unique_id", unique_id}});
}

void ServerGroup::form(const std::string& group) {
  const Reply invited = invite(group, size());
  ASSERT_THAT(invited, has_status(201));
  const std::string unique_id = invited.document().at("unique_id");
  for (std::size_t rank = 1; rank < size(); ++rank) {
    ASSERT_THAT(join(group, rank, unique_id, size()), has_status(201));
  }
  for (std::size_t rank = 0; rank < size(); ++rank) {
    ASSERT_TRUE(eventually([&] { return state(group, rank) == "ready"; })) << rank;
  }
}

std::string ServerGroup::state(const std::string& group, std::size_t rank) {
  const Reply reply = ranks_[rank].rest->get("/v1/groups/" + group);
  return reply.status == 200 ? reply.document().at("state").get<std::string>() : reply.code();
}

std::vector<std::string> ServerGroup::start(const std::string& group, const std::string& operation,
                                            const json& body,
                                            const std::vector<std::size_t>& ranks) {
  std::vector<std::string> transfers;
  for (std::size_t rank : ranks) {
    const Reply reply = ranks_[rank].rest->post("/v1/groups/" + group + "/" + operation, body);
    EXPECT_TRUE(reply.ok()) << "rank " << rank << ": " << reply.body;
    transfers.push_back(reply.ok() ? reply.document().at("transfer").get<std::string>() : "");
  }
  return transfers;
}

std::vector<json> ServerGroup::run(const std::string& group, const std::string& operation,
                                   const json& body) {
  std::vector<std::size_t> all(size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  const auto transfers = start(group, operation, body, all);
  std::vector<json> documents;
  for (std::size_t rank : all) documents.push_back(ended(rank, transfers[rank]));
  return documents;
}

json ServerGroup::ended(std::size_t rank, const std::string& transfer) {
  json document;
  EXPECT_TRUE(eventually([&] {
    const Reply reply = ranks_[rank].rest->get("/v1/transfers/" + transfer + "?wait_ms=5000");
    if (reply.status != 200) return false;
    document = reply.document();
    const std::string state = document.at("state");
    return state != "queued" && state != "running";
  })) << "rank "
      << rank;
  return document;
}

}  // namespace cairn::e2e
