#!/usr/bin/env python3
"""Writes dashboards/*.json: what a panel shows stands here once, the JSON that Grafana wants around it
is added. Run it after a change and commit both; a test compares them.

usage: dashboards.py [--check]
"""

import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent / "dashboards"
COLUMNS = 24

# The series that the variables choose.
I = 'instance=~"$instance"'
C = I + ',cache=~"$cache"'
CT = C + ',tier=~"$tier"'


def rate(metric, labels=I):
    return f"rate({metric}{{{labels}}}[$__rate_interval])"


def share_or_zero(part, whole):
    """A status that was never answered has no series: that is a share of 0, and no missing data."""
    return f"sum({part}) / sum({whole}) > 0 or 0 * sum({whole})"


def each_byte_once(metric):
    """A device's slots and reductions are cut from its allocator, which has their bytes already."""
    return f'{metric}{{{I},allocator!~"slots|reductions"}} or {metric}{{{I},device!~"[0-9]+"}}'


def quantile(q, metric, by, labels=I):
    return f"histogram_quantile({q}, sum by (le{', ' + by if by else ''}) ({rate(metric + '_bucket', labels)}))"


def panel(title, queries, unit="short", kind="timeseries", width=8, height=8, about="", thresholds=(), most=None,
          least=0, stacked=False, mappings=()):
    """queries: {legend: expression}. thresholds: [(colour, from value)], green below the first."""
    steps = [{"color": "green", "value": None}] + [{"color": colour, "value": at} for colour, at in thresholds]
    defaults = {"unit": unit, "min": least, "thresholds": {"mode": "absolute", "steps": steps},
                "color": {"mode": "thresholds" if kind in ("stat", "gauge") else "palette-classic"},
                "mappings": [{"type": "value", "options": {str(value): {"text": text, "color": colour}
                                                           for value, text, colour in mappings}}] if mappings else []}
    if most is not None:
        defaults["max"] = most
    options = {"tooltip": {"mode": "multi", "sort": "desc"},
               "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]}}
    if kind == "timeseries":
        defaults["custom"] = {"fillOpacity": 30 if stacked else 8, "lineWidth": 1, "showPoints": "never",
                              "stacking": {"mode": "normal" if stacked else "none"},
                              "thresholdsStyle": {"mode": "dashed" if thresholds else "off"}}
    else:
        options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "background_solid",
                   "graphMode": "area", "textMode": "auto"}
    return {"title": title, "type": kind, "description": about,
            "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "gridPos": {"w": width, "h": height}, "options": options,
            "fieldConfig": {"defaults": defaults, "overrides": []},
            "targets": [{"refId": chr(ord("A") + n), "expr": expression, "legendFormat": legend,
                         "datasource": {"type": "prometheus", "uid": "${datasource}"}}
                        for n, (legend, expression) in enumerate(queries.items())]}


def row(title):
    return {"title": title, "type": "row", "collapsed": False, "panels": [], "gridPos": {"w": COLUMNS, "h": 1}}


def variable(name, query):
    return {"name": name, "label": name, "type": "query", "query": {"query": query, "refId": name},
            "definition": query, "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "refresh": 2, "sort": 1, "multi": True, "includeAll": True, "allValue": ".*",
            "current": {"text": "All", "value": "$__all"}}


def dashboard(uid, title, about, panels, *, with_tier=True):
    x = y = tallest = 0
    for number, each in enumerate(panels, start=1):
        place = each["gridPos"]
        if x + place["w"] > COLUMNS:
            x, y, tallest = 0, y + tallest, 0
        place.update(x=x, y=y)
        x, tallest = x + place["w"], max(tallest, place["h"])
        each["id"] = number
    variables = [{"name": "datasource", "label": "data source", "type": "datasource", "query": "prometheus",
                  "current": {"text": "Prometheus", "value": "prometheus"}},
                 variable("instance", "label_values(cairn_build_info, instance)"),
                 variable("cache", 'label_values(cairn_block_capacity{instance=~"$instance"}, cache)')]
    if with_tier:
        variables.append(variable("tier", f"label_values(cairn_block_capacity{{{C}}}, tier)"))
    return {"uid": uid, "title": title, "description": about, "tags": ["cairn"], "schemaVersion": 39, "version": 1,
            "editable": True, "timezone": "browser", "refresh": "10s", "time": {"from": "now-1h", "to": "now"},
            "links": [{"type": "dashboards", "title": "Cairn", "tags": ["cairn"], "asDropdown": True,
                       "includeVars": True, "keepTime": True}],
            "templating": {"list": variables}, "panels": panels}


# Pressure counts blocks that cannot be evicted: a cache full of evictable blocks is normal.
LEVELS = [(0, "normal", "green"), (1, "elevated", "green"), (2, "warning", "yellow"), (3, "critical", "yellow"),
          (4, "out of memory", "red")]
ASKED = f'sum by (instance, cache) ({rate("cairn_match_blocks_total", C)})'

OVERVIEW = dashboard("cairn-overview", "Cairn / Overview", "Health, hit rate and fill level.", [
    row("Now"),
    panel("Serving", {"{{instance}}": f"cairn_ready{{{I}}}"}, kind="stat", width=4, height=4,
          mappings=[(0, "not ready", "red"), (1, "ready", "green")]),
    panel("Hit rate", {"{{cache}}": f'sum by (cache) ({rate("cairn_match_blocks_total", C + ",result!=" + chr(34) + "miss" + chr(34))}) / sum by (cache) ({rate("cairn_match_blocks_total", C)})'},
          "percentunit", "stat", 4, 4, "Share of requested blocks that were found."),
    panel("Pressure", {"{{cache}} {{tier}}": f"max by (cache, tier) (cairn_pressure_level{{{CT}}})"}, kind="stat",
          width=6, height=4, mappings=LEVELS, thresholds=[("yellow", 2), ("red", 4)]),
    panel("Requests", {"all": f'sum({rate("cairn_http_requests_total")})'}, "reqps", "stat", 3, 4),
    panel("Refused with 5xx", {"all": share_or_zero(rate("cairn_http_requests_total", I + ',code=~"5.."'), rate("cairn_http_requests_total"))},
          "percentunit", "stat", 4, 4, "Capacity (507), overload and drain (503), and faults (500).",
          thresholds=[("orange", 0.001), ("red", 0.01)]),
    panel("Wrong checksums", {"all": f"sum(cairn_checksum_failures_total{{{I}}})"}, kind="stat", width=3, height=4,
          about="Since the server's start. Each block was refused and dropped. A value above 0 means failing hardware.",
          thresholds=[("red", 1)]),

    row("Is it useful"),
    panel("Requested blocks by tier", {"{{result}}": f'sum by (result) ({rate("cairn_match_blocks_total", C)})'},
          "cps", stacked=True, about="Engines have to compute the blocks of `miss`."),
    panel("Hit rate by tier", {"{{cache}} {{result}}": f'sum by (instance, cache, result) ({rate("cairn_match_blocks_total", C + ",result!=" + chr(34) + "miss" + chr(34))}) / on (instance, cache) group_left {ASKED}'},
          "percentunit", most=1, stacked=True),
    panel("Prefix lookups and commits", {"lookups": f'sum({rate("cairn_matches_total", C)})',
                                        "{{result}}": f'sum by (result) ({rate("cairn_commits_total", C)})'}, "cps",
          about="A duplicate was computed although it was stored: engines that race, or skipped lookups."),

    row("What more memory would give"),
    panel("Hit rate by size of the cache", {"{{cache}} × {{capacity_ratio}}": f"1 - cairn_miss_ratio_curve{{{C}}}"},
          "percentunit", most=1, about="Share of recently requested blocks that LRU would have found in a cache of a quarter to four times the size. × 1 is today's capacity."),
    panel("More hits by doubling the memory", {"{{cache}}": f'cairn_miss_ratio_curve{{{C},capacity_ratio="1"}} - ignoring (capacity_ratio) cairn_miss_ratio_curve{{{C},capacity_ratio="2"}}'},
          "percentunit", about="In points of all requested blocks. `cairnctl advise CACHE` prints the gain of one more GiB of each tier."),
    panel("LRU instead of the configured order", {"{{cache}}": f"cairn_eviction_follows_lru{{{C}}}"}, most=1,
          about="1 while the cache's `eviction` does worse than LRU, so that the cache follows LRU."),

    row("How full is it"),
    panel("Occupancy", {"{{cache}} {{tier}}": f'sum by (cache, tier) (cairn_blocks{{{CT},state!="free"}}) / sum by (cache, tier) (cairn_block_capacity{{{CT}}})'},
          "percentunit", most=1, thresholds=[("orange", 0.9), ("red", 0.97)],
          about="A working cache is full. It is out of memory only if nothing can be evicted."),
    panel("Blocks by state", {"{{tier}} {{state}}": f"sum by (tier, state) (cairn_blocks{{{CT}}})"}, stacked=True),
    panel("Pressure over time", {"{{cache}} {{tier}}": f"max by (cache, tier) (cairn_pressure_level{{{CT}}})"}, most=4,
          mappings=LEVELS, thresholds=[("yellow", 2), ("red", 4)]),
    panel("Leases and leased blocks", {"leases {{cache}}": f"sum by (cache) (cairn_leases{{{C}}})",
                                      "blocks {{cache}} {{tier}}": f"sum by (cache, tier) (cairn_leased_blocks{{{CT}}})"}),
    panel("Expired leases", {"{{cache}}": f'sum by (cache) ({rate("cairn_lease_expirations_total", C)})'}, "cps",
          about="Clients that died or forgot to release."),
    panel("Evictions", {"{{tier}} {{reason}}": f'sum by (tier, reason) ({rate("cairn_evictions_total", CT)})'}, "cps",
          stacked=True),

    row("Shared tier"),
    panel("Found beyond this host", {"{{cache}}": f'sum by (instance, cache) ({rate("cairn_match_blocks_total", C + ",result=" + chr(34) + "shared" + chr(34))}) / on (instance, cache) {ASKED}'},
          "percentunit", most=1, about="Share of requested blocks that another host had. They arrive while the engine continues."),
    panel("Blocks by outcome", {"{{event}}": f'sum by (event) ({rate("cairn_shared_blocks_total", C)})'},
          "cps", about="`dropped_full` and `dropped_failed` were not stored, or not published; `absent` had gone before they were fetched."),
    panel("Skipped after a failure", {"nodes of the store": f'sum(cairn_shared_nodes{{{I},state="left_alone"}})',
                         "servers with blocks": f'sum(cairn_shared_peers{{{I},state="left_alone"}})'},
          thresholds=[("orange", 1)], about="They failed, and their blocks are misses meanwhile. `GET /v1/system` has each one's last error."),
    panel("99th percentile by operation", {"{{operation}}": quantile(0.99, "cairn_shared_request_duration_seconds", "operation")},
          "s", about="`probe` counts against the deadline of a match (2 ms); `peer_read` is a block read from another server."),
    panel("99th percentile by node", {"{{node}}": quantile(0.99, "cairn_shared_node_request_duration_seconds", "node")},
          "s", about="Nodes of the store, and servers that blocks were read from (http://, unix:); `other`: those beyond 64. One line above the rest is a slow node, or a slow link to it."),
    panel("Look-ups", {"{{result}}": f'sum by (result) ({rate("cairn_shared_looks_total", C)})'}, "cps",
          about="`late`: some answers were missing at the deadline; those keys were misses."),
    panel("Wrong values", {"{{reason}}": f'sum by (reason) ({rate("cairn_shared_wrong_values_total", C)})'}, "cps",
          thresholds=[("red", 0.000001)], about="Refused and erased. A value above 0 means a damaged store, or servers that disagree about keys or shapes."),

    row("Requests"),
    panel("Requests by route", {"{{method}} {{route}}": f'sum by (method, route) ({rate("cairn_http_requests_total")})'},
          "reqps", height=10),
    panel("Latency", {f"p{p}": quantile(p / 100, "cairn_http_request_duration_seconds", "") for p in (50, 90, 99)}, "s",
          height=10, about="From a request's first byte to its response's last, all routes."),
    panel("99th percentile by route", {"{{route}}": quantile(0.99, "cairn_http_request_duration_seconds", "route")}, "s",
          height=10),
    panel("Refusals by status", {"{{code}}": f'sum by (code) ({rate("cairn_http_requests_total", I + ",code=~" + chr(34) + "4..|5.." + chr(34))})'},
          "reqps", about="404 and 410 are normal in a working cache; 429, 503 and 507 show which bound was reached."),
    panel("Connections", {"open": f"sum(cairn_http_connections{{{I}}})",
                          "accepted per second": f'sum({rate("cairn_http_connections_total")})',
                          "refused per second": f'sum({rate("cairn_http_connections_refused_total")})'}),
    panel("Lost log lines", {"dropped per second": f'sum({rate("cairn_log_dropped_total")})',
                                    "left out per second": f'sum({rate("cairn_log_left_out_total")})'},
          about="Dropped: nobody read them in time. Left out: too many came for one reason, for example from a client that is refused repeatedly."),
    panel("Network", {"received": f'sum({rate("cairn_http_received_bytes_total")})',
                      "sent": f'sum({rate("cairn_http_sent_bytes_total")})'}, "Bps"),
])

MOVEMENT = dashboard("cairn-movement", "Cairn / Movement", "Blocks moving between tiers.", [
    row("How much"),
    panel("Bytes moved", {"{{from}} to {{to}}": f'sum by (from, to) ({rate("cairn_transfer_bytes_total", C)})'}, "Bps"),
    panel("Blocks moved", {"{{from}} to {{to}}": f'sum by (from, to) ({rate("cairn_transfers_total", C + ",outcome=" + chr(34) + "done" + chr(34))})'},
          "cps"),
    panel("In progress", {"{{from}} to {{to}}": f"sum by (from, to) (cairn_transfers_in_flight{{{I}}})"}),
    row("How long"),
    panel("Median", {"{{from}} to {{to}}": quantile(0.5, "cairn_transfer_duration_seconds", "from, to")}, "s"),
    panel("99th percentile", {"{{from}} to {{to}}": quantile(0.99, "cairn_transfer_duration_seconds", "from, to")}, "s"),
    panel("Waiting jobs", {"{{instance}}": f"cairn_transfer_queue_depth{{{I}}}"},
          about="Jobs of the transfer scheduler. When its queue is full, requests get 429."),
    row("What went wrong"),
    panel("Blocks that did not arrive", {"{{from}} to {{to}} {{outcome}}": f'sum by (from, to, outcome) ({rate("cairn_transfers_total", C + ",outcome!=" + chr(34) + "done" + chr(34))})'},
          "cps", thresholds=[("red", 0.01)]),
    panel("Jobs by outcome", {"{{outcome}}": f'sum by (outcome) ({rate("cairn_transfer_jobs_total")})'}, "cps",
          about="`rejected`: the queue was full."),
    panel("Copies dropped", {"{{tier}} {{reason}}": f'sum by (tier, reason) ({rate("cairn_evictions_total", CT)})',
                             "wrong checksum {{tier}}": f'sum by (tier) ({rate("cairn_checksum_failures_total", I + ",tier=~" + chr(34) + "$tier" + chr(34))})'},
          "cps", about="`io_error`: the bytes were lost and the key became a miss."),
    row("Agents: engines whose memory the server copies to and from"),
    panel("Registered", {"{{instance}}": f"cairn_agents{{{I}}}"}, about="Each agent ends with its connection or its lease."),
    panel("Blocks of agents", {"{{direction}} {{outcome}}": f'sum by (direction, outcome) ({rate("cairn_agent_blocks_total")})'},
          "cps", about="`load` copies to an engine's memory, `store` from it."),
    panel("Bytes of agents", {"{{direction}}": f'sum by (direction) ({rate("cairn_agent_bytes_total")})'}, "Bps"),
])

ALLOCATORS = dashboard("cairn-allocators", "Cairn / Allocators", "Memory besides the tiers: staging, pools, engines' memory.", [
    row("How much"),
    panel("Allocated", {"{{allocator}} {{device}}": each_byte_once("cairn_allocator_allocated_bytes")}, "bytes",
          stacked=True, about="In use. A device's slots are part of its allocator."),
    panel("Reserved", {"{{allocator}} {{device}}": each_byte_once("cairn_allocator_reserved_bytes")}, "bytes",
          stacked=True, about="Taken from the system; the part that is not allocated is free."),
    panel("Peak", {"{{allocator}} {{device}}": f"cairn_allocator_peak_allocated_bytes{{{I}}}"}, "bytes"),
    panel("Share of reserved memory in use", {"{{allocator}} {{device}}": f"cairn_allocator_allocated_bytes{{{I}}} / (cairn_allocator_reserved_bytes{{{I}}} > 0)"},
          "percentunit", most=1),
    panel("Largest free piece", {"{{allocator}} {{device}}": f"cairn_allocator_largest_free_bytes{{{I}}}"}, "bytes"),
    panel("Fragmentation", {"{{allocator}} {{device}}": f"cairn_allocator_fragmentation_ratio{{{I}}}"},
          "percentunit", most=1, thresholds=[("orange", 0.5), ("red", 0.9)],
          about="0: all free memory is one piece. Near 1: large requests fail although enough memory is free."),
    row("How busy"),
    panel("Allocations and frees", {"allocated {{allocator}}": f'sum by (allocator) ({rate("cairn_allocator_allocations_total")})',
                                    "freed {{allocator}}": f'sum by (allocator) ({rate("cairn_allocator_frees_total")})'},
          "cps"),
    panel("Served without asking the system", {"{{allocator}}": f'sum by (allocator) ({rate("cairn_allocator_cache_hits_total")}) / (sum by (allocator) ({rate("cairn_allocator_cache_hits_total")}) + sum by (allocator) ({rate("cairn_allocator_cache_misses_total")}))'},
          "percentunit", most=1),
    panel("Splits and merges", {"splits {{allocator}}": f'sum by (allocator) ({rate("cairn_allocator_splits_total")})',
                                "merges {{allocator}}": f'sum by (allocator) ({rate("cairn_allocator_merges_total")})'},
          "cps"),
    row("Requests"),
    panel("Share of the limit in use", {"{{allocator}} {{device}}": f"cairn_allocator_allocated_bytes{{{I}}} / (cairn_allocator_limit_bytes{{{I}}} > 0)"},
          "percentunit", most=1, thresholds=[("orange", 0.9), ("red", 0.97)],
          about="At the limit of `http_bodies` a request with a long body gets 503."),
    panel("Bodies by their peak memory", {"up to {{le}}": f'sum by (le) ({rate("cairn_http_body_peak_bytes_bucket")})'},
          "cps", about="Bodies that did not arrive together with their head. A body gets its announced length at once, as long as announcements leave most of the memory free."),
    panel("Small buffers", {"hits {{bucket_bytes}}": f'sum by (bucket_bytes) ({rate("cairn_allocator_bucket_hits_total")})',
                            "misses {{bucket_bytes}}": f'sum by (bucket_bytes) ({rate("cairn_allocator_bucket_misses_total")})',
                            "upgrades {{bucket_bytes}}": f'sum by (bucket_bytes) ({rate("cairn_allocator_bucket_upgrades_total")})',
                            "downgrades {{bucket_bytes}}": f'sum by (bucket_bytes) ({rate("cairn_allocator_bucket_downgrades_total")})'},
          "cps", about="A miss was served by a larger bucket, or not at all. An upgrade is a body that turned out longer, a downgrade one that turned out shorter."),
], with_tier=False)

DISK = 'instance=~"$instance",cache=~"$cache",tier="disk"'
DISK_AND_SHARING = dashboard("cairn-disk", "Cairn / Disk and sharing", "Use and wear of flash, and sharing between clients.", [
    row("Disk"),
    panel("Occupancy", {"{{cache}}": f'sum by (cache) (cairn_blocks{{{DISK},state!="free"}}) / sum by (cache) (cairn_block_capacity{{{DISK}}})'},
          "percentunit", most=1, about="With a codec more blocks may fit than the capacity says."),
    panel("Blocks by the codec", {"{{cache}} {{result}}": f'sum by (cache, result) ({rate("cairn_codec_blocks_total", DISK)})'},
          "cps", about="`noise` and `slow` lie on disk as they are: they do not shrink, or decoding is slower than the disk."),
    panel("Room by the codec", {"{{cache}}": f'sum by (cache) ({rate("cairn_codec_bytes_total", DISK + ",form=" + chr(34) + "encoded" + chr(34))}) / sum by (cache) ({rate("cairn_codec_bytes_total", DISK + ",form=" + chr(34) + "plain" + chr(34))})'},
          "percentunit", most=1, about="Bytes of the encoded blocks, as a share of those before it."),
    panel("Written and read", {"written from {{from}}": f'sum by (from) ({rate("cairn_transfer_bytes_total", C + ",to=" + chr(34) + "disk" + chr(34))})',
                               "read to {{to}}": f'sum by (to) ({rate("cairn_transfer_bytes_total", C + ",from=" + chr(34) + "disk" + chr(34))})'},
          "Bps", about="Writes wear the drive out."),
    panel("Blocks found only on disk", {"{{cache}}": f'sum by (cache) ({rate("cairn_match_blocks_total", C + ",result=" + chr(34) + "disk" + chr(34))})'},
          "cps"),
    panel("99th percentile of writes and reads", {"{{from}} to {{to}}": f'histogram_quantile(0.99, sum by (le, from, to) ({rate("cairn_transfer_duration_seconds_bucket", I + ",to=" + chr(34) + "disk" + chr(34))}))',
                                                  "{{from}} to {{to}} ": f'histogram_quantile(0.99, sum by (le, from, to) ({rate("cairn_transfer_duration_seconds_bucket", I + ",from=" + chr(34) + "disk" + chr(34))}))'},
          "s"),
    panel("Blocks that left the disk", {"{{reason}}": f'sum by (reason) ({rate("cairn_evictions_total", DISK)})'}, "cps"),
    panel("Wrong checksums on disk", {"{{instance}}": f'{rate("cairn_checksum_failures_total", I + ",tier=" + chr(34) + "disk" + chr(34))}'},
          "cps", thresholds=[("red", 0.000001)]),
    row("Sharing"),
    panel("Leased blocks by tier", {"{{tier}}": f"sum by (tier) (cairn_leased_blocks{{{C}}})"}, stacked=True,
          about="Pinned for clients; they cannot be evicted."),
    panel("Computed twice", {"{{cache}}": f'sum by (cache) ({rate("cairn_commits_total", C + ",result=" + chr(34) + "duplicate" + chr(34))}) / sum by (cache) ({rate("cairn_commits_total", C)})'},
          "percentunit", most=1, about="Share of committed blocks that another engine had committed before."),
    panel("Index and records", {"{{cache}}": f"sum by (cache) (cairn_metadata_bytes{{{C}}})"}, "bytes"),
    row("Groups of servers"),
    panel("Groups by state", {"{{state}}": f"sum by (state) (cairn_groups{{{I}}})",
                              "ranks of those that are ready": f'sum(cairn_group_ranks{{{I},state="ready"}})'},
          about="A failed group stays failed: leave it on every server, and make it again."),
    panel("Operations", {"{{kind}} {{outcome}}": f'sum by (kind, outcome) ({rate("cairn_collective_operations_total")})',
                         "groups that failed": f'sum({rate("cairn_group_failures_total")})'}, "cps"),
    panel("Waiting and in progress", {"{{instance}}": f"cairn_collective_queue_depth{{{I}}}"},
          about="A growing queue waits for a rank whose operation was not called."),
    panel("Bytes sent and received", {"{{kind}} {{direction}}": f'sum by (kind, direction) ({rate("cairn_collective_bytes_total")})'},
          "Bps", about="A broadcast counts once on its root."),
    panel("Blocks sent and received", {"{{kind}} {{direction}}": f'sum by (kind, direction) ({rate("cairn_collective_blocks_total")})'},
          "cps"),
    panel("99th percentile of operations", {"{{kind}}": quantile(0.99, "cairn_collective_duration_seconds", "kind")}, "s",
          about="Including the wait for the other ranks."),
], with_tier=False)

ALL = {"overview": OVERVIEW, "movement": MOVEMENT, "allocators": ALLOCATORS, "disk": DISK_AND_SHARING}


def main():
    stale = []
    for name, body in ALL.items():
        path, text = HERE / f"{name}.json", json.dumps(body, indent=1, ensure_ascii=False) + "\n"
        if "--check" not in sys.argv:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(path.name)
    if stale:
        sys.exit(f"not what dashboards.py writes: {', '.join(stale)}")


if __name__ == "__main__":
    main()
