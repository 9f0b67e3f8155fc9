#include "server/routes/write_header.hpp"

#include "server/codec/action_body.hpp"
#include "server/codec/dom_blocks.hpp"
#include "server/codec/reuse_hint_body.hpp"

namespace cairn::routes {
namespace {

WriteHeader read_header(Fields& fields, std::size_t max_keys, const KvGroupNames& groups) {
  DecodeErrors& errors = fields.errors();
  WriteHeader header;
  header.keys = read_keys(fields, "keys", max_keys);
  header.tier = read_optional_tier(fields, "tier");
  std::optional<BlockKey> first_parent;
  const json* parent = fields.optional_any("parent");
  if (parent != nullptr && !parent->is_null()) first_parent = read_key(*parent, "parent", errors);
  const json* parents = fields.optional_list("parents");
  if (parents != nullptr && parent != nullptr) {
    errors.add(ErrorCode::malformed,
               "parent and parents are both given; a write takes one of them");
  }
  header.parents = parents != nullptr ? read_parents(*parents, header.keys.size(), errors)
                                      : chained_parents(header.keys, first_parent);
  read_write_options(fields, header.each);
  header.hint = read_hint(fields);
  header.pin_ms = read_cache_control(fields);
  header.kv_group = read_one_kv_group(fields, groups);
  return header;
}

}  // namespace

Result<WriteHeader> read_write_header(std::span<const std::byte> text, std::size_t max_keys,
                                      const KvGroupNames& groups) {
  auto document = parse_document(text, WireFormat::text, max_document_values(max_keys));
  if (!document) {
    return Error{document.error().code, "the header: " + std::move(document).error().detail};
  }
  return read_whole(*document,
                    [&](Fields& fields) { return read_header(fields, max_keys, groups); });
}

}  // namespace cairn::routes
