#include "server/http/trace_context.hpp"

#include <gtest/gtest.h>

#include <string>

namespace cairn::http {
namespace {

// The example of the W3C's recommendation.
const std::string kField = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

TEST(TraceContext, NamesTheTraceAndTheCallersSpan) {
  const TraceContext trace = trace_context(kField);
  EXPECT_EQ(trace.trace_id, "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(trace.parent_id, "00f067aa0ba902b7");
}

TEST(TraceContext, SaysWhetherTheCallerRecordsTheTrace) {
  const std::string ids = kField.substr(0, kField.size() - 2);
  for (const char* flags : {"01", "03", "ff"}) EXPECT_TRUE(trace_context(ids + flags).is_sampled);
  for (const char* flags : {"00", "02", "fe"}) EXPECT_FALSE(trace_context(ids + flags).is_sampled);
}

TEST(TraceContext, AcceptsLaterVersions) {
  const std::string later = "cc" + kField.substr(2);
  EXPECT_FALSE(trace_context(later).trace_id.empty());
  EXPECT_FALSE(trace_context(later + "-more").trace_id.empty());
  EXPECT_TRUE(trace_context(later + "more").trace_id.empty());
}

TEST(TraceContext, IsEmptyIfTheFieldIsMalformed) {
  for (const std::string& wrong : {
           std::string(),
           std::string("00"),
           kField.substr(0, kField.size() - 1),
           kField + "-more",
           "ff" + kField.substr(2),
           "0x" + kField.substr(2),
           std::string("00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"),
           std::string("00-00000000000000000000000000000000-00f067aa0ba902b7-01"),
           std::string("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01"),
           std::string("00-4bf92f3577b34da6a3ce929d0e0e4736\n00f067aa0ba902b7-01"),
           std::string("00-4bf92f3577b34da6a3ce929d0e0e473\"-00f067aa0ba902b7-01"),
       }) {
    EXPECT_TRUE(trace_context(wrong).trace_id.empty()) << wrong;
    EXPECT_TRUE(trace_context(wrong).parent_id.empty()) << wrong;
  }
}

}  // namespace
}  // namespace cairn::http
