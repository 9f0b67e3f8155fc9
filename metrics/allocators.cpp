#include "metrics/allocators.hpp"

#include <string>

#include "metrics/families.hpp"

namespace cairn {
namespace {

struct Field {
  MetricName name;
  std::uint64_t AllocatorStatistics::*value;
};

constexpr Field kGauges[] = {
    {{"cairn_allocator_allocated_bytes", "Bytes in use, as they were cut."},
     &AllocatorStatistics::allocated_bytes},
    {{"cairn_allocator_reserved_bytes",
      "Bytes had from whoever gives memory to the allocator: in use, or kept for the next user. "
      "Slots, and reductions of a device, have theirs from other allocators."},
     &AllocatorStatistics::reserved_bytes},
    {{"cairn_allocator_cached_bytes", "Bytes kept for the next user."},
     &AllocatorStatistics::cached_bytes},
    {{"cairn_allocator_pending_bytes",
      "Bytes of those that may not be reused before their last user's work has ended."},
     &AllocatorStatistics::pending_bytes},
    {{"cairn_allocator_peak_allocated_bytes",
      "The most bytes in use so far; of slots, the sum of the caches' peaks."},
     &AllocatorStatistics::peak_allocated_bytes},
    {{"cairn_allocator_limit_bytes",
      "What may be reserved; 0: what the machine or the device has."},
     &AllocatorStatistics::limit_bytes},
    {{"cairn_allocator_largest_free_bytes", "What one allocation can get without reserving more."},
     &AllocatorStatistics::largest_free_bytes},
};

constexpr Field kCounters[] = {
    {{"cairn_allocator_allocations_total", "Allocations that succeeded."},
     &AllocatorStatistics::allocations},
    {{"cairn_allocator_frees_total", "Allocations given back."}, &AllocatorStatistics::frees},
    {{"cairn_allocator_cache_hits_total",
      "Allocations served from what was reserved already; of slots none are counted, as their tier "
      "is reserved as a whole."},
     &AllocatorStatistics::cache_hits},
    {{"cairn_allocator_cache_misses_total",
      "Allocations for which more had to be reserved; never of slots."},
     &AllocatorStatistics::cache_misses},
    {{"cairn_allocator_retries_total",
      "Requests for more that were made once again after what was cached had gone back."},
     &AllocatorStatistics::retries},
    {{"cairn_allocator_splits_total", "Blocks cut in two to serve an allocation."},
     &AllocatorStatistics::splits},
    {{"cairn_allocator_merges_total", "Free neighbours joined into one block."},
     &AllocatorStatistics::merges},
    {{"cairn_allocator_typed_allocations_total", "Allocations asked for as objects of a type."},
     &AllocatorStatistics::typed_allocations},
    {{"cairn_allocator_typed_objects_total", "Objects that they were for."},
     &AllocatorStatistics::typed_objects},
};

struct BucketField {
  MetricName name;
  std::uint64_t BucketStatistics::*value;
};

constexpr BucketField kBucketGauge = {
    {"cairn_allocator_bucket_in_use", "Buffers of one size in use, by their bytes."},
    &BucketStatistics::in_use};

constexpr BucketField kBucketCounters[] = {
    {{"cairn_allocator_bucket_hits_total",
      "Buffers had from the bucket that their size belongs to."},
     &BucketStatistics::hits},
    {{"cairn_allocator_bucket_misses_total",
      "Buffers that were not there: had from a larger bucket, or not at all."},
     &BucketStatistics::misses},
    {{"cairn_allocator_bucket_upgrades_total",
      "Buffers moved into this bucket from a smaller one, as more came than was expected."},
     &BucketStatistics::upgrades},
    {{"cairn_allocator_bucket_downgrades_total",
      "Buffers moved into this bucket from a larger one, as less came."},
     &BucketStatistics::downgrades},
};

prometheus::MetricFamily of_buckets(MetricFamilyBuilder builder, const BucketField& field,
                                    std::span<const NamedAllocator> allocators) {
  for (const NamedAllocator& one : allocators) {
    for (const BucketStatistics& bucket : one.buckets) {
      builder.add({{"allocator", one.allocator},
                   {"device", one.device},
                   {"bucket_bytes", std::to_string(bucket.buffer_bytes)}},
                  bucket.*field.value);
    }
  }
  return std::move(builder).take();
}

}  // namespace

void add_allocators(std::vector<prometheus::MetricFamily>& out,
                    std::span<const NamedAllocator> allocators) {
  const auto add = [&](MetricFamilyBuilder builder, const auto& value_of) {
    for (const NamedAllocator& one : allocators) {
      builder.add({{"allocator", one.allocator}, {"device", one.device}}, value_of(one.now));
    }
    out.push_back(std::move(builder).take());
  };
  for (const Field& field : kGauges) {
    add(MetricFamilyBuilder::gauge(field.name),
        [&](const AllocatorStatistics& now) { return now.*field.value; });
  }
  add(MetricFamilyBuilder::gauge(
          {"cairn_allocator_fragmentation_ratio",
           "The share of the reusable bytes that the largest allocation cannot get."}),
      [](const AllocatorStatistics& now) { return now.fragmentation(); });
  for (const Field& field : kCounters) {
    add(MetricFamilyBuilder::counter(field.name),
        [&](const AllocatorStatistics& now) { return now.*field.value; });
  }
  out.push_back(
      of_buckets(MetricFamilyBuilder::gauge(kBucketGauge.name), kBucketGauge, allocators));
  for (const BucketField& field : kBucketCounters) {
    out.push_back(of_buckets(MetricFamilyBuilder::counter(field.name), field, allocators));
  }
}

}  // namespace cairn
