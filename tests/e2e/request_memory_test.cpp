#include "tests/e2e/support/raw_connection.hpp"
#include "tests/e2e/support/served_test.hpp"

// The memory of requests while they arrive and are processed, as a scrape shows it.
namespace cairn::e2e {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kAnnouncedMiB = 1 << 20;

class RequestMemoryTest : public ServedTest {
 protected:
  double of_bodies(const std::string& name) {
    return rest_.metric("cairn_allocator_" + name + R"({allocator="http_bodies",device="host"})");
  }
  double of_bucket(const std::string& name, int bytes) {
    return rest_.metric("cairn_allocator_bucket_" + name +
                        R"({allocator="http_small_bodies",device="host",bucket_bytes=")" +
                        std::to_string(bytes) + "\"}");
  }
  std::string match_head(const std::vector<std::string>& fields) {
    std::vector<std::string> all = {"Content-Type: application/json"};
    all.insert(all.end(), fields.begin(), fields.end());
    return head_text("POST", cache_.path("/match"), all);
  }
  static std::string match_body(int keys_count) {
    return json{{"keys", keys(1, keys_count)}, {"lease_ms", 0}}.dump();
  }
  // In chunks of at most 1000 bytes.
  static std::string chunked(std::string_view body) {
    std::string text;
    for (; !body.empty(); body.remove_prefix(std::min<std::size_t>(body.size(), 1000))) {
      const std::string_view piece = body.substr(0, 1000);
      std::array<char, 16> size{};
      std::snprintf(size.data(), size.size(), "%zx", piece.size());
      text += std::string(size.data()) + "\r\n" + std::string(piece) + "\r\n";
    }
    return text + "0\r\n\r\n";
  }

  TestCache cache_{rest_, {.pinned = 8}};
};

TEST_F(RequestMemoryTest, AnnouncedLengthAllocatesTheBodyOnce) {
  std::string body = match_body(20'000);
  ASSERT_GT(body.size(), 200'000U);
  const double allocations = of_bodies("allocations_total");
  const double peak = rest_.metric("cairn_http_body_peak_bytes_sum");
  const double counted = rest_.metric("cairn_http_body_bytes_count");
  RawConnection client(server().endpoint());
  client.send(match_head({"Content-Length: " + std::to_string(body.size())}));
  for (std::size_t at = 0; at < body.size(); at += 50'000) client.send(body.substr(at, 50'000));
  EXPECT_EQ(client.receive().status, 200U);
  EXPECT_EQ(of_bodies("allocations_total"), allocations + 1);
  ASSERT_TRUE(eventually([&] { return rest_.metric("cairn_http_body_peak_bytes_sum") > peak; }));
  // A growing body would hold its last three sizes at once.
  EXPECT_LE(rest_.metric("cairn_http_body_peak_bytes_sum"),
            peak + static_cast<double>(body.size()) * 1.3);
  EXPECT_EQ(rest_.metric("cairn_http_body_bytes_count"), counted + 1);
}

TEST_F(RequestMemoryTest, AnnouncedBodiesTakeOnlyPartOfTheMemory) {
  std::vector<std::unique_ptr<RawConnection>> waiting;
  for (int n = 0; n < 12; ++n) {
    waiting.push_back(std::make_unique<RawConnection>(server().endpoint()));
    waiting.back()->send(match_head(
        {"Content-Length: " + std::to_string(24 * kAnnouncedMiB), "Expect: 100-continue"}));
    EXPECT_THAT(waiting.back()->receive_some(), HasSubstr("100 Continue"));
  }
  const double held = of_bodies("allocated_bytes");
  EXPECT_GE(held, 48.0 * kAnnouncedMiB);
  EXPECT_LE(held, 80.0 * kAnnouncedMiB);
  EXPECT_EQ(rest_.post(cache_.path("/match"), json::parse(match_body(20'000))).status, 200U);
  waiting.clear();
  EXPECT_TRUE(eventually([&] { return of_bodies("allocated_bytes") == 0; }));
}

TEST_F(RequestMemoryTest, UnexpectedBodyLengthChangesTheBucket) {
  const double shorter = of_bucket("downgrades_total", 256);
  const double longer = of_bucket("upgrades_total", 16'384);
  const double hits = of_bucket("hits_total", 4096);
  const double misses = of_bucket("misses_total", 4096);
  RawConnection client(server().endpoint());
  client.send(match_head({"Transfer-Encoding: chunked"}) + chunked(match_body(1)));
  EXPECT_EQ(client.receive().status, 200U);
  client.send(match_head({"Transfer-Encoding: chunked"}) + chunked(match_body(500)));
  EXPECT_EQ(client.receive().status, 200U);
  EXPECT_EQ(of_bucket("downgrades_total", 256), shorter + 1);
  EXPECT_EQ(of_bucket("upgrades_total", 16'384), longer + 1);
  EXPECT_EQ(of_bucket("hits_total", 4096), hits + 2);
  EXPECT_EQ(of_bucket("misses_total", 4096), misses);
}

TEST_F(RequestMemoryTest, EmptyBucketCountsAMissAndServesTheBody) {
  constexpr int kBuffers = 256;  // of 64 KiB
  const double misses = of_bucket("misses_total", 65'536);
  const std::string body = match_body(1'000);
  ASSERT_GT(body.size(), 16'384u);
  ASSERT_LT(body.size(), 65'536u - 4'096u);
  const std::string begun = chunked(body).substr(0, body.size());
  std::vector<std::unique_ptr<RawConnection>> waiting;
  for (int n = 0; n < kBuffers; ++n) {
    waiting.push_back(std::make_unique<RawConnection>(server().endpoint()));
    waiting.back()->send(match_head({"Transfer-Encoding: chunked"}) + begun);
  }
  ASSERT_TRUE(eventually([&] { return of_bucket("in_use", 65'536) == kBuffers; }));
  EXPECT_EQ(of_bucket("misses_total", 65'536), misses);
  RawConnection one_more(server().endpoint());
  one_more.send(match_head({"Transfer-Encoding: chunked"}) + chunked(body));
  EXPECT_EQ(one_more.receive().status, 200U);
  EXPECT_GE(of_bucket("misses_total", 65'536), misses + 1);
}

TEST_F(RequestMemoryTest, ReadKeepsItsKeysInRequestMemory) {
  std::size_t key_bytes = 0;
  for (int n = 1; n <= 3; ++n) {
    cache_.store(n);
    key_bytes += key(n).size() / 2;
  }
  const double allocations = of_bodies("typed_allocations_total");
  const double objects = of_bodies("typed_objects_total");
  const Reply reply = rest_.post(cache_.path("/read"), {{"keys", keys(1, 3)}});
  EXPECT_EQ(reply.body, blocks(1, 3));
  EXPECT_EQ(of_bodies("typed_allocations_total"), allocations + 2);
  EXPECT_EQ(of_bodies("typed_objects_total"), objects + static_cast<double>(key_bytes) + 3);
}

}  // namespace
}  // namespace cairn::e2e
