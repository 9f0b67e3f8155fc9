#include <numeric>

#include "blockmgr/collectives/collective_blocks.hpp"
#include "blockmgr/collectives/collective_headers.hpp"

namespace cairn {

CollectiveOutcome exchange_values(const CollectiveContext& context,
                                  const CollectiveRequest& request, TransferId id) {
  const auto failed = [](const Error& why, bool group_broken) {
    return CollectiveOutcome{
        .state = TransferState::failed, .error = why, .group_broken = group_broken};
  };
  Communicator& communicator = context.communicator;
  Members members(communicator.place().world_size);
  std::iota(members.begin(), members.end(), 0u);
  const CallHeader mine = CallHeader::of(request);
  std::vector<CallHeader> headers(members.size());
  if (auto agreed =
          communicator.all_gather({.source = reinterpret_cast<const std::byte*>(&mine),
                                   .destination = reinterpret_cast<std::byte*>(headers.data()),
                                   .elements = {.count = sizeof mine}});
      !agreed) {
    return failed(agreed.error(), true);
  }
  // All ranks find this out before anything was done, so the group stays usable.
  if (auto fit = check_calls(members, headers); !fit) return failed(fit.error(), false);
  Numbers values = request.values;
  std::byte* const bytes = values.data();
  const Communicator::Elements elements{.count = values.count(), .type = values.type()};
  if (auto reduced = communicator.all_reduce({.source = bytes,
                                              .destination = bytes,
                                              .elements = elements,
                                              .reduction = request.reduction});
      !reduced) {
    return failed(reduced.error(), true);
  }
  CollectiveCounters& counted = context.counters[static_cast<std::size_t>(request.kind)];
  counted.sent({.size_bytes = elements.size_bytes()});
  counted.received({.size_bytes = elements.size_bytes()});
  context.transfers.add(id, TransferTable::Arrived{.bytes = elements.size_bytes()});
  context.transfers.set_values(id, std::move(values));
  return {};
}

}  // namespace cairn
