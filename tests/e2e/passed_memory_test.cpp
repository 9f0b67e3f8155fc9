#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/e2e/support/mapped_slots.hpp"
#include "tests/e2e/support/served_test.hpp"
#include "tests/e2e/support/unix_server.hpp"

// Memory that is passed as an open file over the server's Unix socket. The test plays the engine.
namespace cairn::e2e {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr std::uint64_t kSlotBytes = 512;  // kBlockBytes, padded to the alignment of cache_body()
constexpr std::uint64_t kPassedBlocks = 4;
constexpr std::uint64_t kMemoryBytes = kPassedBlocks * kSlotBytes;

// An engine's memory; by default nobody can truncate it.
PassedFiles memory(std::uint64_t size_bytes = kMemoryBytes, int seals = F_SEAL_SHRINK) {
  FileDescriptor file(::memfd_create("engine", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(file.get(), static_cast<::off_t>(size_bytes)), 0);
  EXPECT_EQ(::fcntl(file.get(), F_ADD_SEALS, seals), 0);
  return {std::make_shared<const FileDescriptor>(std::move(file))};
}

json passed(std::uint64_t size_bytes = kMemoryBytes, int number = 0) {
  return {{"kind", "shm"}, {"descriptor", number}, {"size_bytes", size_bytes}};
}

json body_with(const json& import, const std::string& tier = "pinned") {
  json body = cache_body({.device = tier == "device" ? std::uint32_t{kPassedBlocks} : 0,
                          .pinned = tier == "pinned" ? std::uint32_t{kPassedBlocks} : 0});
  body["tiers"][tier]["memory"] = {{"import", import}};
  return body;
}

TEST(PassedMemory, ExportPassesTheOpenFileOfATier) {
  UnixServer served;
  for (const char* tier : {"device", "pinned"}) {
    TestCache cache(served.rest, {.device = 4, .pinned = 4, .layout = "second"});
    const Reply reply = served.rest.post(cache.path("/tiers/" + std::string(tier) + "/export"));
    ASSERT_THAT(reply, has_status(200));
    const json description = reply.document();
    EXPECT_EQ(description.at("kind"), "shm");
    EXPECT_EQ(description.at("descriptor"), 0);
    ASSERT_THAT(reply.files, SizeIs(1));
    MappedTier mapped(description, *reply.files.front());
    const json allocation = cache.allocate(1, tier);
    const json& handle = allocation.at("blocks").at(0);
    mapped.write_block(handle.at("slot"), block(1));
    EXPECT_THAT(
        served.rest.post(cache.path("/commit"), {{"lease", allocation.at("lease")},
                                                 {"blocks", {TestCache::commit_block(handle, 1)}}}),
        has_status(200));
    EXPECT_EQ(cache.expect_intact(1), tier);
  }
}

TEST(PassedMemory, ExportOverTcpPassesNoFile) {
  UnixServer served;
  const TestCache cache(served.rest, {.pinned = 4});
  const Reply reply = served.by_tcp().post(cache.path("/tiers/pinned/export"));
  EXPECT_THAT(reply, has_status(200));
  EXPECT_FALSE(reply.document().contains("descriptor"));
  EXPECT_THAT(reply.files, IsEmpty());
}

// A device tier of this runtime always has an open file.
TEST(PassedMemory, CacheBodyAsksForADeviceDescriptor) {
  UnixServer served;
  json body = cache_body({.device = 4});
  body["tiers"]["device"]["memory"] = {{"export", "descriptor"}};
  TestCache cache = TestCache::made_of(served.rest, body);
  EXPECT_EQ(served.rest.get(cache.path()).document().at("/tiers/device/memory"_json_pointer),
            json({{"export", "descriptor"}}));
  EXPECT_THAT(served.rest.put(cache.path(), body), has_status(200));
  EXPECT_THAT(served.rest.post(cache.path("/tiers/device/export")).files, SizeIs(1));

  body["tiers"]["device"]["memory"] = {{"export", "handle"}};
  EXPECT_THAT(served.rest.put(cache.path(), body), is_problem(409, "cache_exists"));
  body["tiers"]["device"]["memory"] = {{"export", "telepathy"}};
  EXPECT_THAT(served.rest.put("/v1/caches/x", body), is_problem(400));
  body["tiers"]["device"]["memory"] = {{"export", "descriptor"}, {"import", passed()}};
  EXPECT_THAT(served.rest.put("/v1/caches/x", body), is_problem(400, "malformed"));
  json pinned = cache_body({.pinned = 4});
  pinned["tiers"]["pinned"]["memory"] = {{"export", "descriptor"}};
  EXPECT_THAT(served.rest.put("/v1/caches/x", pinned), is_problem(400));
}

TEST(PassedMemory, EngineMemoryHoldsATier) {
  UnixServer served;
  for (const char* tier : {"pinned", "device"}) {
    const PassedFiles files = memory();
    const json body = body_with(passed(), tier);
    const std::string path = "/v1/caches/" + std::string(tier);
    ASSERT_THAT(served.rest.put(path, body, files), has_status(201));
    const json description = served.rest.post(path + "/tiers/" + tier + "/export").document();
    const MappedTier mapped(description, *files.front());
    EXPECT_THAT(served.by_tcp().post(path + "/tiers/" + tier + "/export"),
                is_problem(422, "impossible"))
        << "there is no path to open it by";
    ASSERT_THAT(served.rest.put_bytes(path + "/keys/" + key(1), block(1)), has_status(201));
    const json match =
        served.rest.post(path + "/match", {{"keys", keys(1, 1)}, {"lease_ms", 0}}).document();
    EXPECT_EQ(mapped.read_block(match.at("blocks").at(0).at("slot")), block(1));
  }
}

TEST(PassedMemory, ImportsSeveralFilesByNumber) {
  UnixServer served;
  PassedFiles files = memory(2 * kMemoryBytes);
  files.push_back(memory().front());
  json body = cache_body({.device = kPassedBlocks, .pinned = kPassedBlocks});
  body["tiers"]["device"]["memory"] = {{"import", passed(kMemoryBytes, 1)}};
  body["tiers"]["pinned"]["memory"] = {{"import", passed(2 * kMemoryBytes, 0)}};
  ASSERT_THAT(served.rest.put("/v1/caches/two", body, files), has_status(201));
  const auto size_bytes = [&](const char* tier) {
    return served.rest.post("/v1/caches/two/tiers/" + std::string(tier) + "/export")
        .document()
        .at("size_bytes");
  };
  EXPECT_EQ(size_bytes("pinned"), 2 * kMemoryBytes);
  EXPECT_EQ(size_bytes("device"), kMemoryBytes);
}

TEST(PassedMemory, RecognizesTheSameMemory) {
  UnixServer served;
  const PassedFiles files = memory();
  const json body = body_with(passed());
  EXPECT_THAT(served.rest.put("/v1/caches/a", body, files), has_status(201));
  EXPECT_THAT(served.rest.put("/v1/caches/a", body, files), has_status(200));
  EXPECT_THAT(served.rest.put("/v1/caches/a", body, memory()), is_problem(409, "state_conflict"))
      << "a writer there would write where nobody reads";
  EXPECT_THAT(served.rest.put("/v1/caches/b", body, files), is_problem(409, "state_conflict"))
      << "another tier uses these bytes";
  EXPECT_THAT(served.rest.del("/v1/caches/a"), has_status(204));
  EXPECT_THAT(served.rest.put("/v1/caches/b", body, files), has_status(201));
}

TEST(PassedMemory, RefusesWrongMemoryByName) {
  UnixServer served;
  const auto put = [&](const json& import, PassedFiles files) {
    return served.rest.put("/v1/caches/x", body_with(import), std::move(files));
  };
  const Reply none = put(passed(), {});
  EXPECT_THAT(none, is_problem(422, "impossible"));
  EXPECT_THAT(none.body, HasSubstr("0 open files came with the request"));
  EXPECT_THAT(put(passed(kMemoryBytes, 1), memory()), is_problem(422, "impossible"));
  EXPECT_THAT(put(passed(kMemoryBytes, 8), memory()), is_problem(400, "out_of_range"));
  EXPECT_THAT(put(passed(), memory(kMemoryBytes - 1)), is_problem(422, "impossible"));
  const Reply cut = put(passed(), memory(kMemoryBytes, F_SEAL_GROW));
  EXPECT_THAT(cut, is_problem(422, "impossible"));
  EXPECT_THAT(cut.body, HasSubstr("F_SEAL_SHRINK")) << "truncating it would kill the server";
  json ipc = passed();
  ipc["kind"] = "file";
  EXPECT_THAT(put(ipc, memory()), is_problem(400));
  json vmm = passed();
  vmm["kind"] = "cuda_vmm_fd";
  EXPECT_THAT(put(vmm, memory()), is_problem(422, "impossible"));
  // The refused requests have left nothing behind.
  EXPECT_THAT(put(passed(), memory()), has_status(201));
}

// Another server's export can be imported unchanged, but only with its open file.
TEST(PassedMemory, ImportsTheExportOfAnotherServerUnchanged) {
  UnixServer owner;
  UnixServer engine;
  TestCache cache(owner.rest, {.pinned = kPassedBlocks});
  const Reply exported = owner.rest.post(cache.path("/tiers/pinned/export"));
  ASSERT_THAT(exported.files, SizeIs(1));
  const json body = body_with(exported.document());
  EXPECT_THAT(engine.rest.put("/v1/caches/same", body, {}), is_problem(422, "impossible"));
  ASSERT_THAT(engine.rest.put("/v1/caches/same", body, exported.files), has_status(201));
  // The engine fills a slot that the owner has allocated, and the owner commits it.
  const json allocation = cache.allocate(1, "pinned");
  ASSERT_EQ(allocation.at("blocks").at(0).at("slot"), 0);
  ASSERT_THAT(engine.rest.put_bytes("/v1/caches/same/keys/" + key(7), block(7)), has_status(201));
  EXPECT_THAT(
      owner.rest.post(cache.path("/commit"),
                      {{"lease", allocation.at("lease")},
                       {"blocks", {TestCache::commit_block(allocation.at("blocks").at(0), 7)}}}),
      has_status(200));
  EXPECT_EQ(cache.expect_intact(7), "pinned");
}

TEST(PassedMemory, AnImportOfBlocksOfAnotherFormIsRefused) {
  UnixServer owner;
  UnixServer engine;
  TestCache cache(owner.rest, {.pinned = kPassedBlocks});
  const Reply exported = owner.rest.post(cache.path("/tiers/pinned/export"));
  const json memory = exported.document();
  const auto refusal = [&](const json& changed) {
    return engine.rest.put("/v1/caches/other", body_with(changed), exported.files);
  };
  json layout = memory;
  layout["layout"] = "layer_separate";
  layout["block_dim"] = "second";
  EXPECT_THAT(refusal(layout), is_problem(422, "impossible"));
  // As many bytes, but they mean something else.
  json shape = memory;
  shape["shape"]["page_size"] = 2 * kPageSize;
  shape["shape"]["inner_dim"] = kInner / 2;
  EXPECT_THAT(refusal(shape), is_problem(422, "impossible"));
  shape["shape"].erase("inner_dim");
  EXPECT_THAT(refusal(shape), is_problem(400, "missing_field"));
  EXPECT_THAT(refusal(memory), has_status(201));
}

// An open file ends with the process that has it, so the engine must create the cache again.
TEST(PassedMemory, PassedMemoryIsGoneAfterARestart) {
  const fakes::TempDir data;
  const PassedFiles files = memory();
  json body = body_with(passed());
  body["tiers"]["disk"] = cache_body({.disk = 4}).at("tiers").at("disk");
  {
    UnixServer served({.data_dir = data.path() / "data"});
    ASSERT_THAT(served.rest.put("/v1/caches/a", body, files), has_status(201));
    EXPECT_THAT(served.rest.put_bytes("/v1/caches/a/keys/" + key(1) + "?tier=disk", block(1)),
                has_status(201));
  }
  UnixServer served({.data_dir = data.path() / "data"});
  EXPECT_TRUE(eventually([&] {
    return testing::Value(served.server.output(),
                          HasSubstr("a remembered cache could not be made"));
  }));
  EXPECT_THAT(served.rest.get("/v1/caches/a"), is_problem(404, "unknown_cache"));
  ASSERT_THAT(served.rest.put("/v1/caches/a", body, files), has_status(201));
  EXPECT_TRUE(served.rest.get("/v1/caches/a/keys/" + key(1)).body == block(1));
}

}  // namespace
}  // namespace cairn::e2e
