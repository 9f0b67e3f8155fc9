#include <fstream>

#include "tests/e2e/support/served_test.hpp"

// Groups of NCCL over HTTP: one server that is both ranks, one a device, by two names. The fakes of
// libcudart and libnccl stand in for NVIDIA's.
namespace cairn::e2e {
namespace {

TEST(NcclGroups, RanksReduceTheirNumbers) {
  const fakes::TempDir folder;
  const std::string config = (folder.path() / "config.json").string();
  std::ofstream(config) << R"({"caches": [], "groups": {"collective": "nccl"}})";
  ServerProcess server({.flags = {"--runtime", "cuda", "--config", config},
                        .environment = {"LD_LIBRARY_PATH=" CAIRN_FAKE_CUDART_FOLDER}});
  Rest rest(server.endpoint());
  const Reply first =
      rest.post("/v1/groups", {{"name", "a"}, {"rank", 0}, {"world_size", 2}, {"device_id", 0}});
  ASSERT_THAT(first, has_status(201));
  EXPECT_EQ(first.document().at("collective"), "nccl");
  ASSERT_THAT(rest.post("/v1/groups", {{"name", "b"},
                                       {"rank", 1},
                                       {"world_size", 2},
                                       {"device_id", 1},
                                       {"unique_id", first.document().at("unique_id")}}),
              has_status(201));
  const std::map<std::string, json> reduced = {{"sum", {1, 12}}, {"min", {-3, 5}}, {"max", {4, 7}}};
  for (const auto& [op, values] : reduced) {
    const Reply asked = rest.post("/v1/groups/a/all_reduce", {{"values", {4, 5}}, {"op", op}});
    ASSERT_TRUE(asked.ok()) << asked.body;
    const json other =
        rest.post("/v1/groups/b/all_reduce", {{"values", {-3, 7}}, {"op", op}, {"wait_ms", 30'000}})
            .document();
    const json mine =
        rest.get("/v1/transfers/" + asked.document().at("transfer").get<std::string>() +
                 "?wait_ms=30000")
            .document();
    for (const json& ended : {mine, other}) {
      EXPECT_EQ(ended.at("state"), "done") << ended;
      EXPECT_EQ(ended.at("values"), values) << op;
    }
  }
  EXPECT_EQ(server.stop(), 0) << server.output();
}

}  // namespace
}  // namespace cairn::e2e
