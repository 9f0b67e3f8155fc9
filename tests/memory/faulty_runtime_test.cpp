// Tests the fake that the tests of error paths use.
#include "tests/fakes/faulty_runtime.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "memory/host/host_runtime.hpp"

namespace cairn::fakes {
namespace {

class FaultyRuntimeTest : public testing::Test {
 protected:
  Result<> copy(Stream& stream) {
    const MemoryCopy copies[] = {{memory_.data(), memory_.data() + 100, 10},
                                 {memory_.data() + 10, memory_.data() + 110, 10}};
    return stream.copy(copies);
  }

  FaultyRuntime runtime_{make_host_runtime({}).value()};
  std::unique_ptr<Stream> stream_ = runtime_.create_stream(0).value();
  Region memory_ = Region::system(4096).value();
};

TEST_F(FaultyRuntimeTest, FailsTheNthOperationOnly) {
  runtime_.fail_nth(Fault::allocate, 2);
  EXPECT_TRUE(runtime_.allocate_device(1, {}).has_value());
  EXPECT_EQ(runtime_.allocate_pinned(1, {}).error().code, ErrorCode::device_error);
  EXPECT_TRUE(runtime_.allocate_unified(0, 1).has_value());
  EXPECT_EQ(runtime_.count(Fault::allocate), 3u);
  EXPECT_EQ(runtime_.failed(), 1u);
}

TEST_F(FaultyRuntimeTest, FailsACopyAtOnce) {
  runtime_.fail_nth(Fault::copy, 1);
  std::memset(memory_.data() + 100, 1, 20);
  EXPECT_EQ(copy(*stream_).error().code, ErrorCode::device_error);
  stream_->record().value()->wait().value();
  EXPECT_EQ(memory_.data()[0], std::byte{0});
}

TEST_F(FaultyRuntimeTest, FailsACopyLaterAfterHalfOfIt) {
  runtime_.fail_nth(Fault::copy_later, 1);
  std::memset(memory_.data() + 100, 1, 20);
  EXPECT_TRUE(copy(*stream_).has_value());
  EXPECT_EQ(stream_->record().value()->wait().error().code, ErrorCode::device_error);
  EXPECT_EQ(memory_.data()[9], std::byte{1});
  EXPECT_EQ(memory_.data()[10], std::byte{0});
}

TEST_F(FaultyRuntimeTest, KeepsAStreamBrokenAfterALateFailure) {
  runtime_.fail_nth(Fault::copy_later, 1);
  EXPECT_TRUE(copy(*stream_).has_value());
  EXPECT_TRUE(copy(*stream_).has_value());
  const auto event = stream_->record().value();
  EXPECT_EQ(event->wait().error().code, ErrorCode::device_error);
  EXPECT_EQ(event->ready().error().code, ErrorCode::device_error);
}

TEST_F(FaultyRuntimeTest, FailureSpreadsToWaitingStreams) {
  runtime_.fail_nth(Fault::copy_later, 1);
  EXPECT_TRUE(copy(*stream_).has_value());
  const auto failed = stream_->record().value();
  const auto second = runtime_.create_stream(0).value();
  EXPECT_TRUE(second->record().value()->wait().has_value());
  second->wait_for(*failed).value();
  EXPECT_EQ(second->record().value()->wait().error().code, ErrorCode::device_error);
}

TEST_F(FaultyRuntimeTest, FailsARecordOrItsEvent) {
  runtime_.fail_nth(Fault::record, 1);
  EXPECT_EQ(stream_->record().error().code, ErrorCode::device_error);
  runtime_.fail_nth(Fault::event, 1);
  EXPECT_EQ(stream_->record().value()->wait().error().code, ErrorCode::device_error);
  EXPECT_TRUE(stream_->record().value()->wait().has_value());
}

TEST_F(FaultyRuntimeTest, FailsToCreateAStream) {
  runtime_.fail_nth(Fault::create_stream, 1);
  EXPECT_EQ(runtime_.create_stream(0).error().code, ErrorCode::device_error);
}

}  // namespace
}  // namespace cairn::fakes
