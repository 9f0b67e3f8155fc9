#pragma once

#include "server/routes/reply.hpp"
#include "server/routes/service.hpp"

// The handlers of all routes. They run on network threads and must not block; the response may come
// later, from another thread. Those named *_body return the upload that receives a large body.
namespace cairn::routes {

using Handle = void (*)(Service&, const Call&, Reply);
// For a route with a cache in its path.
using HandleOnCache = void (*)(Service&, const Call&, std::shared_ptr<Cache>, Reply);
using Begin = Result<std::unique_ptr<http::Upload>> (*)(Service&, const Call&,
                                                        std::shared_ptr<Cache>);

// caches.cpp
void list_caches(Service&, const Call&, Reply);
void put_cache(Service&, const Call&, Reply);
void patch_cache(Service&, const Call&, std::shared_ptr<Cache>, Reply);
void get_cache(Service&, const Call&, std::shared_ptr<Cache>, Reply);
void delete_cache(Service&, const Call&, Reply);
void export_tier(Service&, const Call&, std::shared_ptr<Cache>, Reply);
// match.cpp
void match(Service&, const Call&, std::shared_ptr<Cache>, Reply);
// contains.cpp
void contains(Service&, const Call&, std::shared_ptr<Cache>, Reply);
// leases.cpp
void allocate(Service&, const Call&, std::shared_ptr<Cache>, Reply);
void commit(Service&, const Call&, std::shared_ptr<Cache>, Reply);
void renew(Service&, const Call&, Reply);
void release(Service&, const Call&, Reply);
void end_lease(Service&, const Call&, Reply);
void list_leases(Service&, const Call&, std::shared_ptr<Cache>, Reply);
// write_slot.cpp, put_key.cpp, write_many.cpp
Result<std::unique_ptr<http::Upload>> write_slot_body(Service&, const Call&,
                                                      std::shared_ptr<Cache>);
Result<std::unique_ptr<http::Upload>> put_key_body(Service&, const Call&, std::shared_ptr<Cache>);
Result<std::unique_ptr<http::Upload>> write_many_body(Service&, const Call&,
                                                      std::shared_ptr<Cache>);
// get_key.cpp
void get_key(Service&, const Call&, std::shared_ptr<Cache>, Reply);
// read_many.cpp
void read_many(Service&, const Call&, std::shared_ptr<Cache>, Reply);
// keys.cpp
void delete_key(Service&, const Call&, std::shared_ptr<Cache>, Reply);
void get_metadata(Service&, const Call&, std::shared_ptr<Cache>, Reply);
void put_metadata(Service&, const Call&, std::shared_ptr<Cache>, Reply);
void list_blocks(Service&, const Call&, std::shared_ptr<Cache>, Reply);
void list_pending(Service&, const Call&, std::shared_ptr<Cache>, Reply);
void miss_ratio(Service&, const Call&, std::shared_ptr<Cache>, Reply);
void evict(Service&, const Call&, std::shared_ptr<Cache>, Reply);
void clear(Service&, const Call&, std::shared_ptr<Cache>, Reply);
// hints.cpp
void hints(Service&, const Call&, std::shared_ptr<Cache>, Reply);
// actions.cpp, pins.cpp
void actions(Service&, const Call&, std::shared_ptr<Cache>, Reply);
void list_pins(Service&, const Call&, std::shared_ptr<Cache>, Reply);
void delete_pin(Service&, const Call&, Reply);
void list_sessions(Service&, const Call&, std::shared_ptr<Cache>, Reply);
// transfers.cpp
void start_transfer(Service&, const Call&, std::shared_ptr<Cache>, Reply);
void drain(Service&, const Call&, std::shared_ptr<Cache>, Reply);
void list_transfers(Service&, const Call&, Reply);
void get_transfer(Service&, const Call&, Reply);
void cancel_transfer(Service&, const Call&, Reply);
// snapshots.cpp
void make_snapshot(Service&, const Call&, std::shared_ptr<Cache>, Reply);
void list_snapshots(Service&, const Call&, Reply);
void delete_snapshot(Service&, const Call&, Reply);
void restore_snapshot(Service&, const Call&, std::shared_ptr<Cache>, Reply);
// events.cpp
void events(Service&, const Call&, Reply);
// groups.cpp
void join_group(Service&, const Call&, Reply);
void list_groups(Service&, const Call&, Reply);
void get_group(Service&, const Call&, Reply);
void leave_group(Service&, const Call&, Reply);
void group_send(Service&, const Call&, Reply);
void group_recv(Service&, const Call&, Reply);
void group_broadcast(Service&, const Call&, Reply);
void group_all_gather(Service&, const Call&, Reply);
void group_agree(Service&, const Call&, Reply);
void group_all_reduce(Service&, const Call&, Reply);
// agents.cpp
void put_engine_memory(Service&, const Call&, Reply);
void list_engine_memories(Service&, const Call&, Reply);
void get_engine_memory(Service&, const Call&, Reply);
void delete_engine_memory(Service&, const Call&, Reply);
void load_to_engine(Service&, const Call&, std::shared_ptr<Cache>, Reply);
void store_from_engine(Service&, const Call&, std::shared_ptr<Cache>, Reply);
// devices.cpp
void list_devices(Service&, const Call&, Reply);
void empty_device_cache(Service&, const Call&, Reply);
void reset_device_peaks(Service&, const Call&, Reply);
// info.cpp
void healthz(Service&, const Call&, Reply);
void readyz(Service&, const Call&, Reply);
void system(Service&, const Call&, Reply);
void metrics(Service&, const Call&, Reply);
void history(Service&, const Call&, Reply);
void runbook(Service&, const Call&, Reply);
void openapi(Service&, const Call&, Reply);
void status_page(Service&, const Call&, Reply);

}  // namespace cairn::routes
