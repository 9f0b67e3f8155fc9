#include "transport/s3/s3_answers.hpp"

#include <expat.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include "base/printable.hpp"

namespace cairn {
namespace {

// S3's listings have three levels.
constexpr std::size_t kMaxDepth = 8;
// A key has at most 1,024 bytes, and an error's message is a sentence.
constexpr std::size_t kMaxText = 4'096;
constexpr std::size_t kMaxKeys = 1'000;  // of a page
constexpr std::size_t kMaxTexts = 64;    // elements of an answer that is no list
constexpr std::size_t kMaxErrorText = 300;

// Reads elements by their path, "ListBucketResult/Contents/Key".
class Reader {
 public:
  // Called at the end of each element.
  using Ended = std::function<void(std::string_view path, const std::string& text)>;

  explicit Reader(Ended ended) : parser_(XML_ParserCreate(nullptr)), ended_(std::move(ended)) {
    if (parser_ == nullptr) throw std::bad_alloc();
    XML_SetUserData(parser_.get(), this);
    XML_SetElementHandler(
        parser_.get(),
        [](void* self, const char* name, const char**) { static_cast<Reader*>(self)->begin(name); },
        [](void* self, const char*) { static_cast<Reader*>(self)->end(); });
    XML_SetCharacterDataHandler(parser_.get(), [](void* self, const char* text, int size) {
      static_cast<Reader*>(self)->add({text, static_cast<std::size_t>(size)});
    });
    // Entities are not S3's, and the usual attack on a parser.
    XML_SetDoctypeDeclHandler(
        parser_.get(),
        [](void* self, const char*, const char*, const char*, int) {
          static_cast<Reader*>(self)->stop();
        },
        nullptr);
  }

  bool read(std::string_view xml) {
    return XML_Parse(parser_.get(), xml.data(), static_cast<int>(xml.size()), 1) == XML_STATUS_OK;
  }
  void stop() { XML_StopParser(parser_.get(), XML_FALSE); }

 private:
  void begin(std::string_view name) {
    if (ends_.size() == kMaxDepth || path_.size() + name.size() > kMaxText) return stop();
    ends_.push_back(path_.size());
    if (!path_.empty()) path_ += '/';
    path_ += name;
    text_.clear();
  }
  void add(std::string_view text) {
    if (text_.size() + text.size() > kMaxText) return stop();
    text_ += text;
  }
  void end() {
    ended_(path_, text_);
    path_.resize(ends_.back());
    ends_.pop_back();
    text_.clear();
  }

  struct Free {
    void operator()(XML_Parser parser) const { XML_ParserFree(parser); }
  };
  std::unique_ptr<std::remove_pointer_t<XML_Parser>, Free> parser_;
  Ended ended_;
  std::string path_;
  std::vector<std::size_t> ends_;  // of the path before each open element
  std::string text_;
};

}  // namespace

Result<S3Listing> read_listing(std::string_view xml) {
  S3Listing listing;
  bool is_listing = false;
  bool is_wrong = false;
  S3Listing::Object object;
  Reader reader([&](std::string_view path, const std::string& text) {
    if (path == "ListBucketResult/Contents/Key") {
      object.key = text;
    } else if (path == "ListBucketResult/Contents/Size") {
      const auto [end, error] =
          std::from_chars(text.data(), text.data() + text.size(), object.size_bytes);
      is_wrong |= error != std::errc() || end != text.data() + text.size();
    } else if (path == "ListBucketResult/Contents") {
      listing.objects.push_back(std::exchange(object, {}));
      is_wrong |= listing.objects.size() > kMaxKeys;
    } else if (path == "ListBucketResult/IsTruncated") {
      listing.is_truncated = text == "true";
    } else if (path == "ListBucketResult") {
      is_listing = true;
    }
  });
  if (!reader.read(xml) || is_wrong || !is_listing) {
    return Error{ErrorCode::malformed, "the store's list of objects is not one of S3"};
  }
  return listing;
}

std::map<std::string, std::string, std::less<>> read_texts(std::string_view xml) {
  std::map<std::string, std::string, std::less<>> texts;
  Reader reader([&texts](std::string_view path, const std::string& text) {
    if (texts.size() < kMaxTexts) texts.emplace(path, text);
  });
  if (!reader.read(xml)) texts.clear();
  return texts;
}

std::string read_error(std::string_view xml) {
  const auto texts = read_texts(xml);
  const auto text_of = [&texts](const std::string& name) {
    for (const std::string& path : {"Error/" + name, "ErrorResponse/Error/" + name}) {
      if (const auto at = texts.find(path); at != texts.end()) return at->second;
    }
    return std::string();
  };
  const std::string code = text_of("Code");
  const std::string message = text_of("Message");
  if (code.empty()) return {};
  std::string text = message.empty() ? code : code + ": " + message;
  text.resize(std::min(text.size(), kMaxErrorText));
  return printable(text);
}

}  // namespace cairn
