// Keys of a role, which services of the host or of AWS give.
#include <gmock/gmock.h>

#include <atomic>
#include <cstdlib>
#include <fstream>

#include "tests/fakes/temp_dir.hpp"
#include "tests/s3/s3_client.hpp"

namespace cairn::testing {
namespace {

using Fault = BucketServer::Fault;

class S3Roles : public ::testing::Test {
 protected:
  S3Roles() {
    BucketServer::remove_keys();
    for (const char* name : {"AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_ROLE_ARN",
                             "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_EC2_METADATA_SERVICE_ENDPOINT"}) {
      ::unsetenv(name);
    }
  }

  static void set(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }
  static std::string json_of(const std::string& id, const std::string& expiration) {
    return R"({"AccessKeyId": ")" + id + R"(", "SecretAccessKey": "s", "Token": "t-)" + id +
           R"(", "Expiration": ")" + expiration + R"("})";
  }
  // Writes a value, and returns the key with which its object was put.
  std::string key_of_write(const S3Settings& settings) {
    S3Client store(settings);
    EXPECT_TRUE(eventually([&] { return store.write("a", "first").has_value(); }));
    for (const auto& request : bucket.requests()) {
      if (request.verb == "PUT" && request.key.starts_with("cairn/")) {
        return request.key_id + "/" + request.token;
      }
    }
    return "none";
  }

  BucketServer bucket;
  const fakes::TempDir folder;
};

TEST_F(S3Roles, OfAContainer) {
  set("AWS_CONTAINER_CREDENTIALS_FULL_URI", bucket.url() + "/keys");
  bucket.set_faults([](const auto& request) -> std::optional<Fault> {
    if (request.key != "keys") return std::nullopt;
    return Fault{.status = 200, .body = json_of("role", "2100-01-01T00:00:00Z")};
  });
  EXPECT_EQ(key_of_write(bucket.settings()), "role/t-role");
}

TEST_F(S3Roles, OfTheMachine) {
  set("AWS_EC2_METADATA_SERVICE_ENDPOINT", bucket.url());
  bucket.set_faults([](const auto& request) -> std::optional<Fault> {
    const std::string roles = "latest/meta-data/iam/security-credentials/";
    if (request.key == "latest/api/token") return Fault{.status = 200, .body = "the-token"};
    if (request.key == roles) return Fault{.status = 200, .body = "kv-role\n"};
    if (request.key == roles + "kv-role") {
      return Fault{.status = 200, .body = json_of("machine", "2100-01-01T00:00:00Z")};
    }
    return std::nullopt;
  });
  S3Settings settings = bucket.settings();
  settings.instance_role = true;
  EXPECT_EQ(key_of_write(settings), "machine/t-machine");
}

TEST_F(S3Roles, OfAWebIdentity) {
  const std::string path = folder.path() / "token";
  std::ofstream(path) << "an.identity+token";
  set("AWS_ROLE_ARN", "arn:aws:iam::1:role/kv");
  set("AWS_WEB_IDENTITY_TOKEN_FILE", path);
  set("AWS_ENDPOINT_URL_STS", bucket.url());
  bucket.set_faults([](const auto& request) -> std::optional<Fault> {
    if (request.query.find("Action=AssumeRoleWithWebIdentity") == std::string::npos) {
      return std::nullopt;
    }
    const bool is_right =
        request.query.find("RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fkv&") != std::string::npos &&
        request.query.ends_with("&WebIdentityToken=an.identity%2Btoken");
    if (!is_right) return Fault{.status = 400, .code = "InvalidIdentityToken"};
    return Fault{.status = 200,
                 .body =
                     "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult>"
                     "<Credentials><AccessKeyId>pod</AccessKeyId><SecretAccessKey>s"
                     "</SecretAccessKey><SessionToken>t-pod</SessionToken></Credentials>"
                     "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"};
  });
  EXPECT_EQ(key_of_write(bucket.settings()), "pod/t-pod");
}

TEST_F(S3Roles, KeysAreRenewedBeforeTheyExpire) {
  set("AWS_CONTAINER_CREDENTIALS_FULL_URI", bucket.url() + "/keys");
  std::atomic<int> fetches = 0;
  bucket.set_faults([&fetches](const auto& request) -> std::optional<Fault> {
    if (request.key != "keys") return std::nullopt;
    // The first ones have expired long ago.
    const bool is_first = fetches++ == 0;
    return Fault{.status = 200,
                 .body = is_first ? json_of("old", "2020-01-01T00:00:00Z")
                                  : json_of("new", "2100-01-01T00:00:00Z")};
  });
  S3Client store(bucket.settings());
  EXPECT_TRUE(eventually([&] {
    const auto requests = bucket.requests();
    return !requests.empty() && requests.back().key_id == "new";
  }));
  EXPECT_EQ(fetches, 2);
}

TEST_F(S3Roles, WithoutAnyKeysTheStoreSaysWhereItLooked) {
  set("HOME", folder.path());
  const auto made = make_s3_store(bucket.settings());
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error().detail, ::testing::HasSubstr("AWS_ACCESS_KEY_ID"));
  EXPECT_THAT(made.error().detail, ::testing::HasSubstr("/.aws/credentials"));
}

}  // namespace
}  // namespace cairn::testing
