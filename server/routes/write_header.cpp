#include "server/routes/write_header.hpp"

#include "server/codec/dom_blocks.hpp"

namespace cairn::routes {
namespace {

std::vector<std::optional<BlockKey>> read_parents(const json& list, std::size_t count,
                                                  DecodeErrors& errors) {
  std::vector<std::optional<BlockKey>> parents;
  if (list.size() != count) {
    errors.add(ErrorCode::wrong_length, "parents has " + std::to_string(list.size()) +
                                            " elements; it takes one a key, " +
                                            std::to_string(count));
    return parents;
  }
  parents.reserve(count);
  for (const json& item : list) {
    const std::string path = "parents[" + std::to_string(parents.size()) + "]";
    auto& parent = parents.emplace_back();
    if (!item.is_null()) parent = read_key(item, path, errors);
    if (errors.any()) break;
  }
  return parents;
}

// The keys are one prefix, which goes on from `first`.
std::vector<std::optional<BlockKey>> chained(const std::vector<BlockKey>& keys,
                                             const std::optional<BlockKey>& first) {
  std::vector<std::optional<BlockKey>> parents(keys.size());
  if (!parents.empty()) parents[0] = first;
  for (std::size_t i = 1; i < keys.size(); ++i) parents[i] = keys[i - 1];
  return parents;
}

}  // namespace

Result<WriteHeader> read_write_header(std::span<const std::byte> text, std::size_t max_keys) {
  auto document = parse_document(text, WireFormat::text, max_document_values(max_keys));
  if (!document) {
    return Error{document.error().code, "the header: " + std::move(document).error().detail};
  }
  DecodeErrors errors;
  Fields fields(*document, "", errors);
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
                                      : chained(header.keys, first_parent);
  read_write_options(fields, header.each);
  fields.finish();
  CAIRN_TRY(errors.take());
  return header;
}

}  // namespace cairn::routes
