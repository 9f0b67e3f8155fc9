#include "server/http/input_buffer.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace cairn::http {
namespace {

void write(InputBuffer& buffer, std::string_view text) {
  std::memcpy(buffer.room().data(), text.data(), text.size());
  buffer.commit(text.size());
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(InputBuffer, KeepsConsumedBytesUntilCompacted) {
  InputBuffer buffer(10);
  write(buffer, "headbody");
  const std::byte* head = buffer.data().data();
  buffer.consume(4);
  EXPECT_EQ(text_of(buffer.data()), "body");
  EXPECT_EQ(text_of({head, 4}), "head");
  EXPECT_EQ(buffer.room().size(), 2u);
  EXPECT_EQ(buffer.reach(), 6u);
  buffer.compact();
  EXPECT_EQ(text_of(buffer.data()), "body");
  EXPECT_EQ(buffer.room().size(), 6u);
}

TEST(InputBuffer, CompactsToAPointInTheMiddle) {
  InputBuffer buffer(10);
  write(buffer, "headchunkx");
  buffer.consume(4);
  const std::byte* body_start = buffer.data().data();
  buffer.consume(5);
  buffer.compact(body_start);
  EXPECT_EQ(text_of(buffer.data()), "x");
  EXPECT_EQ(buffer.data().data(), body_start);
  EXPECT_EQ(buffer.room().size(), 5u);
}

}  // namespace
}  // namespace cairn::http
