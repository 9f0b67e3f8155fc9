#include "base/memory_reserve.hpp"

#include <cstdlib>
#include <new>

#include "base/assert.hpp"

namespace cairn {
namespace {

// A global, because std::new_handler is a plain function.
std::atomic<MemoryReserve*> in_force{nullptr};

}  // namespace

MemoryReserve::MemoryReserve() {
  refill();
  CAIRN_ASSERT(in_force.exchange(this) == nullptr, "one of two would never be used");
  std::set_new_handler(&MemoryReserve::on_failure);
}

MemoryReserve::~MemoryReserve() {
  std::set_new_handler(nullptr);
  in_force = nullptr;
  for (auto& part : parts_) std::free(part.exchange(nullptr));
}

// Uses malloc: operator new would take from the reserve that is being refilled.
bool MemoryReserve::refill() {
  for (auto& part : parts_) {
    if (part.load() != nullptr) continue;
    void* const memory = std::malloc(kPartBytes);
    if (memory == nullptr) return false;
    part.store(memory);
  }
  short_.store(false, std::memory_order_relaxed);
  return true;
}

bool MemoryReserve::give_up_a_part() {
  for (auto& part : parts_) {
    void* const memory = part.exchange(nullptr);
    if (memory == nullptr) continue;
    if (!short_.exchange(true)) shortages_.fetch_add(1, std::memory_order_relaxed);
    std::free(memory);
    return true;
  }
  return false;
}

void MemoryReserve::on_failure() {
  MemoryReserve* const reserve = in_force.load();
  if (reserve == nullptr || !reserve->give_up_a_part()) throw std::bad_alloc();
}

}  // namespace cairn
