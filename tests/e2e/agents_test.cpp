#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/e2e/support/raw_connection.hpp"
#include "tests/e2e/support/served_test.hpp"
#include "tests/e2e/support/unix_server.hpp"

// Engines register memory as agents; blocks are loaded into it and stored from it. The test plays
// the engine.
namespace cairn::e2e {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

constexpr std::uint64_t kBlocks = 6;
constexpr std::uint64_t kLayerBytes = kBlocks * kOuter * kRegionBytes;
// Regions start at multiples of 512.
constexpr std::uint64_t kLayerStrideBytes = (kLayerBytes + 511) / 512 * 512;
constexpr std::uint64_t kMemoryBytes = kLayers * kLayerStrideBytes;

// An engine's memory, layer by layer.
class EngineMemory {
 public:
  explicit EngineMemory(FileDescriptor file, std::uint64_t size_bytes = kMemoryBytes)
      : file_(std::make_shared<const FileDescriptor>(std::move(file))), size_bytes_(size_bytes) {
    data_ = static_cast<char*>(
        ::mmap(nullptr, size_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_->get(), 0));
    EXPECT_NE(data_, MAP_FAILED);
  }
  ~EngineMemory() { ::munmap(data_, size_bytes_); }
  EngineMemory(const EngineMemory&) = delete;
  EngineMemory& operator=(const EngineMemory&) = delete;

  static FileDescriptor sealed(int seals = F_SEAL_SHRINK) {
    FileDescriptor file(::memfd_create("engine", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(::ftruncate(file.get(), kMemoryBytes), 0);
    EXPECT_EQ(::fcntl(file.get(), F_ADD_SEALS, seals), 0);
    return file;
  }
  static FileDescriptor at(const std::filesystem::path& path) {
    FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    EXPECT_EQ(::ftruncate(file.get(), kMemoryBytes), 0);
    return file;
  }

  PassedFiles files() const { return {file_}; }
  void cut_off() const { ASSERT_EQ(::ftruncate(file_->get(), 0), 0); }

  // Reads a block in canonical order. `block_first`: the agent's block_dim is `first`.
  std::string read(std::uint64_t block, bool block_first) const {
    std::string bytes;
    each_piece(block, block_first, [&](char* piece) { bytes.append(piece, kRegionBytes); });
    return bytes;
  }
  void write(std::uint64_t block, bool block_first, const std::string& bytes) const {
    const char* from = bytes.data();
    each_piece(block, block_first, [&](char* piece) {
      std::memcpy(piece, from, kRegionBytes);
      from += kRegionBytes;
    });
  }

 private:
  template <class Each>
  void each_piece(std::uint64_t block, bool block_first, Each&& each) const {
    for (std::uint64_t layer = 0; layer < kLayers; ++layer) {
      for (std::uint64_t outer = 0; outer < kOuter; ++outer) {
        const std::uint64_t row = block_first ? block * kOuter + outer : outer * kBlocks + block;
        each(data_ + layer * kLayerStrideBytes + row * kRegionBytes);
      }
    }
  }

  const std::shared_ptr<const FileDescriptor> file_;
  const std::uint64_t size_bytes_;
  char* data_ = nullptr;
};

json shape() {
  const json layout = cache_body({.pinned = 1}).at("layout");
  json shape = layout;
  shape.erase("alignment");
  return shape;
}

json agent_body(const json& where, const std::string& block_dim = "first") {
  json regions = json::array();
  for (std::uint64_t layer = 0; layer < kLayers; ++layer) {
    json region = {
        {"kind", "shm"}, {"offset_bytes", layer * kLayerStrideBytes}, {"size_bytes", kLayerBytes}};
    region.update(where);
    regions.push_back(region);
  }
  return {{"num_blocks", kBlocks},
          {"layout", "layer_separate"},
          {"block_dim", block_dim},
          {"shape", shape()},
          {"regions", regions}};
}
json passed(const std::string& block_dim = "first") {
  return agent_body({{"descriptor", 0}}, block_dim);
}

// A server with a Unix socket and a folder whose files agents may register.
class AgentsTest : public testing::Test {
 protected:
  std::filesystem::path imports() const { return imports_.path(); }
  json by_path(const std::string& name) const {
    return agent_body({{"path", (imports() / name).string()}});
  }
  Reply copy(const std::string& verb, const json& keys, const json& blocks,
             const std::string& agent = "engine") {
    return rest_.post(cache_.path("/" + verb),
                      {{"keys", keys}, {"agent", agent}, {"blocks", blocks}, {"wait_ms", 60'000}});
  }
  // Waits until no agent holds a block or a slot.
  void expect_at_rest() {
    EXPECT_TRUE(eventually([&] {
      const auto counts = cache_.counts();
      return counts.at("leases") == 0 && cache_.count("pinned", "allocated") == 0 &&
             cache_.count("device", "allocated") == 0 && cache_.count("pinned", "committed") == 0 &&
             cache_.count("disk", "committed") == 0;
    }));
  }

  const fakes::TempDir imports_;
  UnixServer served_{{.flags = {"--import-folders", imports_.path().string()}}};
  Rest& rest_ = served_.rest;
  TestCache cache_{rest_, Shape{.device = 4, .pinned = 8, .disk = 8}};
};

TEST_F(AgentsTest, LoadsFromEveryTierInEitherBlockOrder) {
  for (const std::string dim : {"first", "second"}) {
    SCOPED_TRACE(dim);
    const EngineMemory memory(EngineMemory::sealed());
    const Reply made = rest_.put("/v1/agents/engine", passed(dim), memory.files());
    ASSERT_THAT(made, has_status(201));
    EXPECT_EQ(made.header("Location"), "/v1/agents/engine");
    const json descriptors = made.document().at("descriptors");
    ASSERT_EQ(descriptors.size(), kLayers);
    EXPECT_EQ(descriptors[1].at("offset_bytes"), kLayerStrideBytes);
    EXPECT_EQ(descriptors[1].at("device_uuid"), "host-0");
    EXPECT_EQ(descriptors[1].at("kind"), "shm");
    EXPECT_EQ(descriptors[1].at("agent"), "engine");
    EXPECT_EQ(made.document().at("ends_with"), "connection");

    rest_.post(cache_.path("/clear"));
    cache_.store(1, "?tier=device");
    cache_.store(2, "?tier=pinned");
    cache_.store(3, "?tier=disk");
    const Reply loaded = copy("load", keys(1, 3), {4, 0, 2});
    ASSERT_THAT(loaded, has_status(200));
    const json transfer = loaded.document();
    EXPECT_EQ(transfer.at("state"), "done");
    EXPECT_EQ(transfer.at("blocks_done"), 3);
    EXPECT_EQ(transfer.at("layers_done"), kLayers);
    EXPECT_EQ(transfer.at("bytes"), 3 * kBlockBytes);
    EXPECT_EQ(memory.read(4, dim == "first"), block(1));
    EXPECT_EQ(memory.read(0, dim == "first"), block(2));
    EXPECT_EQ(memory.read(2, dim == "first"), block(3));
    EXPECT_EQ(memory.read(1, dim == "first"), std::string(kBlockBytes, '\0'))
        << "no load wrote here";
    expect_at_rest();
    ASSERT_THAT(rest_.del("/v1/agents/engine"), has_status(204));
  }
}

TEST_F(AgentsTest, StoresIntoEveryTierAndCommits) {
  for (const std::string tier : {"device", "pinned", "disk"}) {
    SCOPED_TRACE(tier);
    rest_.post(cache_.path("/clear"));
    const EngineMemory memory(EngineMemory::sealed());
    ASSERT_THAT(rest_.put("/v1/agents/engine", passed(), memory.files()), has_status(201));
    for (int n = 1; n <= 4; ++n) memory.write(static_cast<std::uint64_t>(n), true, block(n));
    cache_.store(3, "?tier=pinned");
    const Reply stored = rest_.post(cache_.path("/store"), {{"keys", keys(1, 4)},
                                                            {"agent", "engine"},
                                                            {"blocks", {1, 2, 3, 4}},
                                                            {"tier", tier},
                                                            {"wait_ms", 60'000}});
    ASSERT_THAT(stored, has_status(200));
    EXPECT_EQ(stored.document().at("state"), "done") << stored.body;
    EXPECT_EQ(stored.document().at("blocks_done"), 4);
    EXPECT_EQ(stored.document().at("bytes"), 3 * kBlockBytes) << "one existed already";
    EXPECT_EQ(cache_.expect_intact(1), tier);
    EXPECT_EQ(cache_.expect_intact(3), "pinned");
    EXPECT_EQ(cache_.match(keys(1, 4), 0).at("matched"), 4);
    EXPECT_THAT(rest_.get(cache_.path("/blocks")).body, HasSubstr("\"parent\":\"" + key(3)));
    expect_at_rest();
    ASSERT_THAT(rest_.del("/v1/agents/engine"), has_status(204));
  }
}

TEST_F(AgentsTest, RegistersAFileInAnAllowedFolder) {
  const EngineMemory memory(EngineMemory::at(imports() / "kv"));
  const json body = by_path("kv");
  const Reply made = rest_.put("/v1/agents/engine", body);
  ASSERT_THAT(made, has_status(201));
  EXPECT_EQ(made.document().at("ends_with"), "lease");
  EXPECT_EQ(made.document().at("descriptors").at(0).at("path"), (imports() / "kv").string());
  EXPECT_THAT(rest_.put("/v1/agents/engine", body), has_status(200));
  cache_.store(1);
  ASSERT_THAT(copy("load", keys(1, 1), {5}), has_status(200));
  EXPECT_EQ(memory.read(5, true), block(1));

  json other = body;
  other["num_blocks"] = kBlocks - 1;
  EXPECT_THAT(rest_.put("/v1/agents/engine", other), is_problem(409, "agent_exists"));
  EXPECT_THAT(rest_.put("/v1/agents/second", body), is_problem(409, "state_conflict"))
      << "another agent has these bytes";
  const json listed = rest_.get("/v1/agents").document().at("agents");
  ASSERT_THAT(listed, SizeIs(1));
  EXPECT_EQ(listed[0].at("name"), "engine");
  EXPECT_EQ(rest_.get("/v1/agents/engine").document().at("num_blocks"), kBlocks);
  ASSERT_THAT(rest_.del("/v1/agents/engine"), has_status(204));
  EXPECT_THAT(rest_.get("/v1/agents/engine"), is_problem(404, "unknown_agent"));
  EXPECT_THAT(rest_.del("/v1/agents/engine"), is_problem(404, "unknown_agent"));
  EXPECT_THAT(copy("load", keys(1, 1), {5}), is_problem(404, "unknown_agent"));
  EXPECT_THAT(rest_.put("/v1/agents/second", body), has_status(201));
}

TEST_F(AgentsTest, LeaseEndRemovesAnAgentRegisteredByPath) {
  const EngineMemory memory(EngineMemory::at(imports() / "kv"));
  json body = by_path("kv");
  body["lease_ms"] = 1;
  ASSERT_THAT(rest_.put("/v1/agents/engine", body), has_status(201));
  EXPECT_TRUE(eventually([&] { return rest_.get("/v1/agents/engine").status == 404; }));
}

TEST_F(AgentsTest, ConnectionEndRemovesAnAgentOfOpenFiles) {
  const EngineMemory memory(EngineMemory::sealed());
  {
    Rest engine(client::Endpoint::parse("unix:" + served_.socket()).value());
    ASSERT_THAT(engine.put("/v1/agents/engine", passed(), memory.files()), has_status(201));
    EXPECT_THAT(rest_.get("/v1/agents/engine"), has_status(200));
  }
  EXPECT_TRUE(eventually([&] { return rest_.get("/v1/agents/engine").status == 404; }));
  // The name becomes free before the bytes do.
  EXPECT_TRUE(eventually(
      [&] { return rest_.put("/v1/agents/engine", passed(), memory.files()).status == 201; }));
}

// Like an engine that is killed while it waits a minute for another rank.
TEST_F(AgentsTest, ClientLossRemovesItsAgentWhileRequestsWait) {
  ASSERT_TRUE(rest_.post("/v1/groups", {{"name", "g"}, {"rank", 0}, {"world_size", 2}}).ok());
  const Reply receiving =
      rest_.post("/v1/groups/g/recv", {{"cache", cache_.name()}, {"keys", {key(1)}}, {"peer", 1}});
  const std::string wait = head_text(
      "GET",
      "/v1/transfers/" + receiving.document().at("transfer").get<std::string>() + "?wait_ms=60000",
      {});
  const std::string body = passed().dump();
  const EngineMemory memory(EngineMemory::sealed());
  {
    RawConnection engine(client::Endpoint::parse("unix:" + served_.socket()).value());
    engine.send(head_text("PUT", "/v1/agents/engine",
                          {"Content-Type: application/json",
                           "Content-Length: " + std::to_string(body.size())}) +
                    body,
                memory.files());
    ASSERT_THAT(engine.receive(), has_status(201));
    engine.send(wait + wait + wait);
    EXPECT_THAT(rest_.get("/v1/agents/engine"), has_status(200));
  }
  EXPECT_TRUE(eventually([&] { return rest_.get("/v1/agents/engine").status == 404; }));
}

// Otherwise a file that is truncated during a copy kills the server with SIGBUS.
TEST_F(AgentsTest, TruncatedFileFailsItsCopiesOnly) {
  for (const std::string verb : {"load", "store"}) {
    SCOPED_TRACE(verb);
    rest_.post(cache_.path("/clear"));
    const EngineMemory memory(EngineMemory::at(imports() / verb));
    ASSERT_THAT(rest_.put("/v1/agents/" + verb, by_path(verb)), has_status(201));
    for (int n = 1; n <= 2; ++n)
      cache_.store(n, "?tier=" + std::string(n == 1 ? "pinned" : "disk"));
    memory.cut_off();
    const json named = verb == "load" ? keys(1, 2) : keys(3, 2);
    const Reply ended = copy(verb, named, {0, 1}, verb);
    ASSERT_THAT(ended, has_status(200));
    EXPECT_EQ(ended.document().at("state"), "failed");
    EXPECT_EQ(ended.document().at("blocks_done"), 0);
    EXPECT_EQ(ended.document().at("failures").at(0).at("code"), "io_error");
    EXPECT_THAT(std::string(ended.document().at("failures").at(0).at("detail")),
                HasSubstr("cut off"));
    EXPECT_EQ(cache_.expect_intact(1), "pinned");
    EXPECT_EQ(cache_.expect_intact(2), "disk");
    EXPECT_FALSE(cache_.holds(3));
    expect_at_rest();
  }
}

TEST_F(AgentsTest, RefusesWrongRegistrationsByName) {
  const EngineMemory memory(EngineMemory::sealed());
  const auto put = [&](const json& body, PassedFiles files) {
    return rest_.put("/v1/agents/engine", body, std::move(files));
  };
  const auto refused = [&](json body, unsigned status, const std::string& code,
                           const std::string& detail) {
    const Reply reply = put(body, memory.files());
    EXPECT_THAT(reply, is_problem(status, code)) << reply.body;
    EXPECT_THAT(reply.body, HasSubstr(detail));
    EXPECT_THAT(rest_.get("/v1/agents").document().at("agents"), SizeIs(0));
  };
  json body = passed();
  body["regions"].erase(1);
  refused(body, 422, "impossible", "regions were given");
  body = passed();
  body["regions"][1]["size_bytes"] = kLayerBytes - 1;
  refused(body, 422, "impossible", "region 1 has");
  body = passed();
  body["regions"][1]["offset_bytes"] = kMemoryBytes;
  refused(body, 422, "impossible", "regions[0]");
  body = passed();
  body["regions"][1]["offset_bytes"] = 0;
  refused(body, 422, "impossible", "bytes apart");
  body = passed();
  body["regions"][1]["offset_bytes"] = kLayerStrideBytes - 8;
  body["regions"][1]["size_bytes"] = kLayerBytes + 8;
  refused(body, 422, "impossible", "must start at one");
  body = passed();
  body["regions"][1] = {{"kind", "cuda_ipc"},
                        {"handle", std::string(128, '0')},
                        {"offset_bytes", 0},
                        {"size_bytes", kLayerBytes}};
  refused(body, 422, "impossible", "regions[1]");
  body = passed();
  body["regions"][0]["descriptor"] = 1;
  refused(body, 422, "impossible", "regions[0].descriptor is 1");
  body = passed();
  body["regions"][0]["device_uuid"] = "GPU-0";
  refused(body, 422, "impossible", "regions[0].device_uuid is GPU-0; device 0 is host-0");
  body = passed();
  body["device_id"] = 1;
  refused(body, 422, "impossible", "device_id is 1");
  body = passed();
  body["lease_ms"] = 5;
  refused(body, 400, "malformed", "lease_ms");
  body = passed();
  body["regions"][0]["kind"] = "file";
  refused(body, 400, "out_of_range", "regions[0].kind");
  body = passed();
  body["regions"][0]["path"] = "/dev/shm/x";
  refused(body, 400, "unknown_field", "path");
  body = passed();
  body["shape"]["alignment"] = 1;
  refused(body, 400, "unknown_field", "shape.alignment");
  body = passed();
  body["num_blocks"] = 0;
  refused(body, 400, "out_of_range", "num_blocks");
  body = passed();
  body["regions"] = json::array();
  refused(body, 400, "out_of_range", "regions has 0");
  body = passed();
  body["shape"]["inner_dim"] = 0;
  refused(body, 422, "impossible_shape", "inner_dim");
  refused(agent_body({{"path", "/etc/passwd"}}), 403, "forbidden", "regions[0].path");
  refused(agent_body({{"path",
                       (imports() / ".." / served_.folder.path().filename() / "socket").string()}}),
          403, "forbidden", "import.folders");
  refused(by_path("missing"), 404, "not_found", "missing");
  std::filesystem::create_symlink("/dev/zero", imports() / "link");
  refused(by_path("link"), 422, "impossible", "no regular file");
  EXPECT_THAT(put(passed(), EngineMemory(EngineMemory::sealed(F_SEAL_GROW)).files()),
              is_problem(422, "impossible"))
      << "the file could be truncated";
  EXPECT_THAT(put(passed(), {}), is_problem(422, "impossible"));
  EXPECT_THAT(rest_.put("/v1/agents/a%20b", passed(), memory.files()), is_problem(400));
}

TEST_F(AgentsTest, RefusesImpossibleCopies) {
  const EngineMemory memory(EngineMemory::sealed());
  ASSERT_THAT(rest_.put("/v1/agents/engine", passed(), memory.files()), has_status(201));
  cache_.store(1);
  const TestCache::Counts before = cache_.counts();
  for (const std::string verb : {"load", "store"}) {
    SCOPED_TRACE(verb);
    EXPECT_THAT(copy(verb, keys(1, 1), {kBlocks}), is_problem(400, "out_of_range"));
    EXPECT_THAT(copy(verb, keys(1, 1), {0, 1}), is_problem(400, "wrong_length"));
    EXPECT_THAT(copy(verb, keys(1, 2), {1, 1}), is_problem(409, "state_conflict"));
    EXPECT_THAT(copy(verb, keys(1, 1), {"one"}), is_problem(400, "wrong_type"));
    EXPECT_THAT(copy(verb, keys(1, 1), {0}, "nobody"), is_problem(404, "unknown_agent"));
    EXPECT_THAT(rest_.post(cache_.path("/" + verb), {{"keys", keys(1, 1)}}), is_problem(400));
  }
  EXPECT_THAT(copy("load", keys(1, 2), {0, 1}), is_problem(404, "unknown_key"));
  EXPECT_THAT(copy("store", {key(5), key(5)}, {0, 1}), is_problem(409, "state_conflict"));
  EXPECT_THAT(
      rest_.post(cache_.path("/load"),
                 {{"keys", keys(1, 1)}, {"agent", "engine"}, {"blocks", {0}}, {"tier", "disk"}}),
      is_problem(400, "unknown_field"));
  EXPECT_THAT(
      rest_.post(
          cache_.path("/store"),
          {{"keys", keys(1, 1)}, {"agent", "engine"}, {"blocks", {0}}, {"parents", json::array()}}),
      is_problem(400, "wrong_length"));
  TestCache wide(rest_, Shape{.pinned = 2, .layout = "first"});
  json body = passed();
  body["shape"]["inner_dim"] = body["shape"]["inner_dim"].get<int>() / 2;
  const EngineMemory narrow(EngineMemory::sealed());
  ASSERT_THAT(rest_.put("/v1/agents/narrow", body, narrow.files()), has_status(201));
  EXPECT_THAT(copy("load", keys(1, 1), {0}, "narrow"), is_problem(422, "impossible"));
  EXPECT_EQ(cache_.counts(), before);
}

TEST_F(AgentsTest, StoresTheBlocksThatFitAndNamesTheRest) {
  const EngineMemory memory(EngineMemory::sealed());
  ASSERT_THAT(rest_.put("/v1/agents/engine", passed(), memory.files()), has_status(201));
  TestCache small(rest_, Shape{.pinned = 2});
  small.store(1);
  small.store(2);
  const json held = small.match(keys(1, 1), 60'000);
  const Reply reply = rest_.post(
      small.path("/store"),
      {{"keys", keys(5, 2)}, {"agent", "engine"}, {"blocks", {0, 1}}, {"wait_ms", 60'000}});
  ASSERT_THAT(reply, has_status(200));
  EXPECT_EQ(reply.document().at("state"), "failed");
  ASSERT_EQ(reply.document().at("failures").size(), 1u);
  EXPECT_EQ(reply.document().at("failures").at(0).at("code"), "no_capacity");
  EXPECT_TRUE(small.holds(5));
  EXPECT_FALSE(small.holds(6));
  EXPECT_EQ(small.count("pinned", "allocated"), 0);
}

}  // namespace
}  // namespace cairn::e2e
