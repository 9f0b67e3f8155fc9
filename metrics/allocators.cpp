#include <string>

#include "metrics/families.hpp"
#include "metrics/parts.hpp"

namespace cairn {
namespace {

struct Field {
  MetricName name;
  std::uint64_t AllocatorStatistics::*value;
};

constexpr Field kGauges[] = {
    {{"cairn_allocator_allocated_bytes", "Bytes in use, including rounding."},
     &AllocatorStatistics::allocated_bytes},
    {{"cairn_allocator_reserved_bytes",
      "Bytes that the allocator got from its source: in use, or kept for reuse. Slots, slabs of a "
      "device, and its reductions get theirs from other allocators."},
     &AllocatorStatistics::reserved_bytes},
    {{"cairn_allocator_cached_bytes", "Bytes kept for reuse."}, &AllocatorStatistics::cached_bytes},
    {{"cairn_allocator_pending_bytes",
      "Cached bytes that cannot be reused until their last user's work has ended."},
     &AllocatorStatistics::pending_bytes},
    {{"cairn_allocator_peak_allocated_bytes",
      "Highest number of bytes in use so far; for slots, the sum of the caches' peaks."},
     &AllocatorStatistics::peak_allocated_bytes},
    {{"cairn_allocator_limit_bytes",
      "Limit of reserved bytes; 0: the memory of the machine or the device."},
     &AllocatorStatistics::limit_bytes},
    {{"cairn_allocator_largest_free_bytes", "Largest allocation possible without reserving more."},
     &AllocatorStatistics::largest_free_bytes},
};

constexpr Field kCounters[] = {
    {{"cairn_allocator_allocations_total", "Allocations that succeeded."},
     &AllocatorStatistics::allocations},
    {{"cairn_allocator_frees_total", "Allocations freed."}, &AllocatorStatistics::frees},
    {{"cairn_allocator_cache_hits_total",
      "Allocations served from reserved memory; not counted for slots, whose tier is reserved as a "
      "whole."},
     &AllocatorStatistics::cache_hits},
    {{"cairn_allocator_cache_misses_total",
      "Allocations that had to reserve more memory; never slots."},
     &AllocatorStatistics::cache_misses},
    {{"cairn_allocator_retries_total",
      "Requests for more memory that were repeated after cached memory was returned."},
     &AllocatorStatistics::retries},
    {{"cairn_allocator_splits_total", "Blocks split to serve an allocation."},
     &AllocatorStatistics::splits},
    {{"cairn_allocator_merges_total", "Free neighbours merged into one block."},
     &AllocatorStatistics::merges},
    {{"cairn_allocator_typed_allocations_total", "Allocations for objects of a type."},
     &AllocatorStatistics::typed_allocations},
    {{"cairn_allocator_typed_objects_total", "Objects in those allocations."},
     &AllocatorStatistics::typed_objects},
};

struct BucketField {
  MetricName name;
  std::uint64_t BucketStatistics::*value;
};

constexpr BucketField kBucketGauge = {
    {"cairn_allocator_bucket_in_use", "Buffers in use, by size in bytes."},
    &BucketStatistics::in_use};

constexpr BucketField kBucketCounters[] = {
    {{"cairn_allocator_bucket_hits_total", "Buffers served from the bucket of their size."},
     &BucketStatistics::hits},
    {{"cairn_allocator_bucket_misses_total",
      "Buffers that their bucket could not serve: taken from a larger bucket, or not served."},
     &BucketStatistics::misses},
    {{"cairn_allocator_bucket_upgrades_total",
      "Buffers moved into this bucket from a smaller one because more bytes arrived than "
      "expected."},
     &BucketStatistics::upgrades},
    {{"cairn_allocator_bucket_downgrades_total",
      "Buffers moved into this bucket from a larger one because fewer bytes arrived than "
      "expected."},
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
           "Share of the reusable bytes that the largest allocation cannot get."}),
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
