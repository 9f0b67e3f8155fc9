#include <algorithm>
#include <charconv>
#include <optional>

#include "server/routes/common.hpp"
#include "server/routes/handlers.hpp"

namespace cairn::routes {
namespace {

ordered_json allocator_body(const NamedAllocator& allocator) {
  const AllocatorStatistics& now = allocator.now;
  return {{"allocator", allocator.allocator},
          {"allocated_bytes", now.allocated_bytes},
          {"reserved_bytes", now.reserved_bytes},
          {"cached_bytes", now.cached_bytes},
          {"pending_bytes", now.pending_bytes},
          {"peak_allocated_bytes", now.peak_allocated_bytes},
          {"peak_reserved_bytes", now.peak_reserved_bytes},
          {"largest_free_bytes", now.largest_free_bytes},
          {"segments", now.segments},
          {"cache_hits", now.cache_hits},
          {"cache_misses", now.cache_misses},
          {"retries", now.retries}};
}

std::vector<NamedAllocator> all_allocators(const Service& service) {
  std::vector<NamedAllocator> all = service.manager.allocators();
  for (NamedAllocator& one : service.scheduler.allocators()) all.push_back(std::move(one));
  return all;
}

ordered_json device_body(const Service& service, const DeviceInfo& device,
                         std::span<const NamedAllocator> allocators) {
  ordered_json list = ordered_json::array();
  std::uint64_t reserved_bytes = 0;
  for (const NamedAllocator& one : allocators) {
    if (one.device != std::to_string(device.id)) continue;
    list.push_back(allocator_body(one));
    if (!one.from_others) reserved_bytes += one.now.reserved_bytes;
  }
  return {{"id", device.id},
          {"name", device.name},
          {"uuid", device.uuid},
          {"kind", service.runtime.name()},
          {"numa_node", device.numa_node},
          {"total_bytes", device.total_bytes},
          {"reserved_bytes", reserved_bytes},
          {"allocators", std::move(list)}};
}

Result<DeviceInfo> device_of(const Service& service, const Call& call) {
  const std::string_view text = call.path[0];
  int id = -1;
  const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), id);
  const auto devices = service.runtime.devices();
  const auto found = std::ranges::find(devices, id, &DeviceInfo::id);
  if (wrong == std::errc{} && end == text.data() + text.size() && found != devices.end()) {
    return *found;
  }
  return Error{ErrorCode::not_found, "there is no device '" + std::string(text.substr(0, 64)) +
                                         "'; the " + std::string(service.runtime.name()) +
                                         " runtime has " + std::to_string(devices.size())};
}

}  // namespace

void list_devices(Service& service, const Call&, Reply reply) {
  answer_on(service.readers, std::move(reply), [&service](Reply& answer) {
    const auto allocators = all_allocators(service);
    ordered_json devices = ordered_json::array();
    for (const DeviceInfo& device : service.runtime.devices()) {
      devices.push_back(device_body(service, device, allocators));
    }
    answer.document(200, {{"devices", std::move(devices)}});
  });
}

void empty_device_cache(Service& service, const Call& call, Reply reply) {
  auto device = device_of(service, call);
  if (!device) return reply.error(device.error());
  // On `admin`, because it waits for the device's streams.
  answer_on(service.admin, std::move(reply),
            [&service, device = std::move(*device)](Reply& answer) {
              const auto freed_bytes = service.scheduler.empty_cache(device.id);
              if (!freed_bytes) return answer.error(freed_bytes.error());
              ordered_json body = {{"freed_bytes", *freed_bytes}};
              body.update(device_body(service, device, all_allocators(service)));
              answer.document(200, body);
            });
}

void reset_device_peaks(Service& service, const Call& call, Reply reply) {
  auto device = device_of(service, call);
  if (!device) return reply.error(device.error());
  answer_on(service.admin, std::move(reply),
            [&service, device = std::move(*device)](Reply& answer) {
              if (auto reset = service.scheduler.reset_peaks(device.id); !reset) {
                return answer.error(reset.error());
              }
              service.manager.reset_peaks(device.id);
              answer.document(200, device_body(service, device, all_allocators(service)));
            });
}

}  // namespace cairn::routes
