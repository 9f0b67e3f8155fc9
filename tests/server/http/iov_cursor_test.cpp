#include "server/http/iov_cursor.hpp"

#include <gtest/gtest.h>
#include <limits.h>

#include <string>

namespace cairn::http {
namespace {

std::string text_of(std::span<const iovec> pieces) {
  std::string text;
  for (const iovec& piece : pieces) {
    text.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
  }
  return text;
}

TEST(IovCursor, AdvancesAcrossPieces) {
  const std::string a = "abc";
  const std::string b = "defgh";
  IovCursor cursor;
  cursor.add(a.data(), a.size());
  cursor.add(b.data(), 0);
  cursor.add(b.data(), b.size());
  EXPECT_EQ(text_of(cursor.window()), "abcdefgh");
  cursor.advance(2);
  EXPECT_EQ(text_of(cursor.window()), "cdefgh");
  cursor.advance(3);
  EXPECT_EQ(text_of(cursor.window()), "fgh");
  EXPECT_EQ(cursor.bytes(), 3u);
  cursor.advance(3);
  EXPECT_TRUE(cursor.empty());
  EXPECT_TRUE(cursor.window().empty());
}

TEST(IovCursor, TakesNoMoreThanTheLimit) {
  std::string a = "abc";
  std::string b = "defgh";
  const iovec pieces[] = {{a.data(), a.size()}, {b.data(), b.size()}, {a.data(), a.size()}};
  IovCursor cursor;
  cursor.add_pieces(pieces, 5);
  EXPECT_EQ(cursor.bytes(), 5u);
  EXPECT_EQ(text_of(cursor.window()), "abcde");
}

TEST(IovCursor, ShowsNoMorePiecesThanTheSystemTakes) {
  const char byte = 'x';
  IovCursor cursor;
  for (int i = 0; i < IOV_MAX + 5; ++i) cursor.add(&byte, 1);
  EXPECT_EQ(cursor.window().size(), std::size_t{IOV_MAX});
  cursor.advance(IOV_MAX);
  EXPECT_EQ(cursor.window().size(), 5u);
}

TEST(IovCursor, FillsThePiecesWithWhatFits) {
  std::string a(3, '.');
  std::string b(2, '.');
  IovCursor cursor;
  cursor.add(a.data(), a.size());
  cursor.add(b.data(), b.size());
  const std::string first = "1234";
  const std::string rest = "5678";
  EXPECT_EQ(cursor.fill(std::as_bytes(std::span(first))), 4u);
  EXPECT_EQ(cursor.fill(std::as_bytes(std::span(rest))), 1u);
  EXPECT_TRUE(cursor.empty());
  EXPECT_EQ(a + b, "12345");
}

TEST(IovCursorDeathTest, RefusesToGoBeyondItsPieces) {
  IovCursor cursor;
  const char byte = 'x';
  cursor.add(&byte, 1);
  EXPECT_DEATH(cursor.advance(2), "beyond");
}

}  // namespace
}  // namespace cairn::http
