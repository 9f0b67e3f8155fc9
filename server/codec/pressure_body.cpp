#include "server/codec/pressure_body.hpp"

namespace cairn {
namespace {

constexpr std::array<std::string_view, 3> kKinds = {"none", "shrink", "callback"};

PressureReaction read_reaction(Fields& fields) {
  PressureReaction reaction;
  reaction.kind = static_cast<PressureReaction::Kind>(fields.word("kind", kKinds));
  const auto target_use = fields.optional_share("target_use");
  if (reaction.kind == PressureReaction::Kind::shrink && !target_use) {
    fields.errors().add(ErrorCode::missing_field,
                        fields.path_of("target_use") + " is missing; it goes with shrink");
  }
  reaction.target_use = target_use.value_or(0.0);
  fields.finish();
  return reaction;
}

}  // namespace

void read_pressure(Fields& fields, PressureConfig& out) {
  out.elevated = fields.optional_share("elevated").value_or(out.elevated);
  out.warning = fields.optional_share("warning").value_or(out.warning);
  out.critical = fields.optional_share("critical").value_or(out.critical);
  if (out.elevated > out.warning || out.warning > out.critical) {
    fields.errors().add(ErrorCode::impossible,
                        fields.path_of("elevated") + ", warning and critical must not descend");
  }
  const json* object = fields.optional_object("reactions");
  if (object == nullptr) return;
  Fields reactions(*object, fields.path_of("reactions"), fields.errors());
  // `normal` is what is left by entering another level, and no reaction's.
  for (std::size_t i = 1; i < kNumPressureLevels; ++i) {
    const std::string_view level = to_string(static_cast<PressureLevel>(i));
    const json* body = reactions.optional_object(level);
    if (body == nullptr) continue;
    Fields members(*body, reactions.path_of(level), fields.errors());
    out.reactions[i] = read_reaction(members);
  }
  reactions.finish();
}

ordered_json pressure_body(const PressureConfig& config) {
  ordered_json body = {
      {"elevated", config.elevated}, {"warning", config.warning}, {"critical", config.critical}};
  for (std::size_t i = 0; i < kNumPressureLevels; ++i) {
    const PressureReaction& reaction = config.reactions[i];
    if (reaction.kind == PressureReaction::Kind::none) continue;
    ordered_json member = {{"kind", kKinds[static_cast<std::size_t>(reaction.kind)]}};
    if (reaction.kind == PressureReaction::Kind::shrink) member["target_use"] = reaction.target_use;
    body["reactions"][std::string(to_string(static_cast<PressureLevel>(i)))] = std::move(member);
  }
  return body;
}

}  // namespace cairn
