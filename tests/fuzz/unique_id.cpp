// A group's unique id, which a client carries from one server to another.
#include "tests/fuzz/fuzz.hpp"
#include "transport/collective/local_rendezvous.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto id = cairn::parse_local_unique_id(cairn::fuzz::Input(data, size).text());
  if (!id) return 0;
  const auto again = cairn::parse_local_unique_id(id->text());
  cairn::fuzz::must(again.has_value(), "an id that is not taken a second time");
  cairn::fuzz::must(again->secret == id->secret && again->address.text() == id->address.text(),
                    "an id that changes on its way");
  return 0;
}
