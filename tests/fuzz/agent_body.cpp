// An agent's registration, a load or a store (chosen by the first byte), as JSON or MessagePack (by
// the second).
#include "server/codec/agent_body.hpp"

#include "tests/fuzz/fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using cairn::EngineCopyKind;
  using cairn::WireFormat;
  cairn::fuzz::Input input(data, size);
  const auto kind = input.byte() % 3;
  const auto format = input.byte() % 2 == 0 ? WireFormat::text : WireFormat::msgpack;
  const auto document = cairn::parse_document(input.rest(), format);
  if (!document) return 0;
  if (kind == 0) {
    static_cast<void>(cairn::read_whole(*document, [](cairn::Fields& fields) {
      return cairn::read_engine_memory_body(fields, "fuzz");
    }));
  } else {
    const auto copy = kind == 1 ? EngineCopyKind::load : EngineCopyKind::store;
    const auto body = cairn::read_whole(*document, [copy](cairn::Fields& fields) {
      return cairn::read_engine_copy(fields, copy, 65'536);
    });
    // A store without parents is one prefix.
    cairn::fuzz::must(!body || kind == 1 || body->parents.size() == body->keys.size(),
                      "a store without a parent for each key");
  }
  return 0;
}
