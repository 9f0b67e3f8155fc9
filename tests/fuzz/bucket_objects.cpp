// Directories, uses and names of objects in a bucket that other servers write to, too, and a
// bucket's answers in XML. The first byte chooses one of them. The test corrects checksums;
// otherwise the fields after them would never be read.
#include <cstring>
#include <string>

#include "base/hash.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "transport/s3/object_format.hpp"
#include "transport/s3/s3_answers.hpp"

namespace {

using namespace cairn;

std::string sealed(std::string_view text) {
  std::string bytes(text);
  std::uint64_t checksum = 0;
  if (bytes.size() < sizeof(checksum)) return bytes;
  checksum = hash_bytes(std::as_bytes(std::span(bytes).subspan(sizeof(checksum))), 0);
  std::memcpy(bytes.data(), &checksum, sizeof(checksum));
  return bytes;
}

void read_a_directory(std::string_view text) {
  const std::string bytes = sealed(text);
  const auto entries = read_directory(bytes);
  if (!entries) return;
  std::uint64_t end = 0;
  for (const ObjectEntry& entry : *entries) {
    fuzz::must(entry.offset == end, "values that leave a gap or overlap");
    end += entry.size_bytes;
  }
  fuzz::must(write_directory(*entries) == bytes, "a directory that reads as another");
}

void read_the_uses(std::string_view text) {
  const std::string bytes = sealed(text);
  const auto uses = read_uses(bytes);
  if (uses) fuzz::must(write_uses(*uses) == bytes, "uses that read as others");
}

void read_a_name(std::string_view text) {
  const auto name = ObjectName::read(text);
  if (name) fuzz::must(ObjectName::read(name->text()) == name, "a name that reads as another");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const std::uint8_t kind = input.byte();
  const std::string_view text = input.text();
  switch (kind % 4) {
    case 0:
      read_a_directory(text);
      break;
    case 1:
      read_the_uses(text);
      break;
    case 2:
      read_a_name(text);
      break;
    default:
      static_cast<void>(read_listing(text));
      static_cast<void>(read_texts(text));
      static_cast<void>(read_error(text));
  }
  return 0;
}
