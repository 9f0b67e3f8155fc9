#include <string>

#include "base/random.hpp"
#include "transport/collective/communicator.hpp"
#include "transport/collective/host_names.hpp"
#include "transport/collective/local_communicator.hpp"
#include "transport/collective/local_rendezvous.hpp"

namespace cairn {
namespace {

class LocalInvitation final : public Invitation {
 public:
  LocalInvitation(LocalUniqueId id, LinkSocket listener)
      : id_(std::move(id)), text_(id_.text()), listener_(std::move(listener)) {}
  const std::string& unique_id() const override { return text_; }
  const LocalUniqueId& id() const { return id_; }
  const LinkSocket& listener() const { return listener_; }

 private:
  const LocalUniqueId id_;
  const std::string text_;
  const LinkSocket listener_;
};

class LocalCollectives final : public Collectives {
 public:
  LocalCollectives(std::string host, HostNames names)
      : host_(std::move(host)), names_(std::move(names)) {}
  std::string_view name() const override { return "local"; }
  std::vector<NamedAllocator> allocators() const override {
    return {{std::string(kReductionAllocator), "host", reductions_->now()}};
  }

  Result<std::unique_ptr<Invitation>> invite(std::chrono::milliseconds timeout,
                                             const JoinStop& stop) override {
    auto number = names_.find(
        host_, {.until = std::chrono::steady_clock::now() + timeout, .stop_fd = stop.fd()});
    if (!number) return std::move(number).error();
    auto listener = listen_on({.host = std::move(*number), .port = 0});
    if (!listener) return std::move(listener).error();
    LocalUniqueId id{.address = {.host = host_, .port = port_of(*listener)}};
    RandomBytes().fill(id.secret);
    return std::unique_ptr<Invitation>(
        std::make_unique<LocalInvitation>(std::move(id), std::move(*listener)));
  }

  Result<std::unique_ptr<Communicator>> join(JoinRequest request, const JoinStop& stop,
                                             UniqueFunction<void()> accepted) override {
    const RankPlace place = request.place;
    if (place.world_size < 1 || place.world_size > kMaxWorldSize ||
        place.rank >= place.world_size) {
      return Error{ErrorCode::out_of_range,
                   "rank " + std::to_string(place.rank) + " of " +
                       std::to_string(place.world_size) + ": world_size is 1 to " +
                       std::to_string(kMaxWorldSize) + ", and rank is below it"};
    }
    Rendezvous rendezvous;
    rendezvous.place = place;
    rendezvous.until = std::chrono::steady_clock::now() + request.join_timeout;
    rendezvous.timeout = request.join_timeout;
    if (place.rank == 0) {
      const auto* invitation = dynamic_cast<const LocalInvitation*>(request.invitation.get());
      if (invitation == nullptr) {
        return Error{ErrorCode::impossible, "rank 0 joins with its own invitation"};
      }
      rendezvous.id = invitation->id();
      rendezvous.listener = &invitation->listener();
    } else {
      auto id = parse_local_unique_id(request.unique_id);
      if (!id) return std::move(id).error();
      auto number =
          names_.find(id->address.host, {.until = rendezvous.until, .stop_fd = stop.fd()});
      if (!number) return std::move(number).error();
      id->address.host = std::move(*number);
      rendezvous.id = std::move(*id);
    }
    auto sockets = meet(rendezvous, stop, std::move(accepted));
    if (!sockets) return std::move(sockets).error();
    return make_local_communicator(place, std::move(*sockets), request.step_timeout, reductions_);
  }

 private:
  const std::string host_;
  const HostNames names_;
  const std::shared_ptr<ReductionCounts> reductions_ = std::make_shared<ReductionCounts>();
};

}  // namespace

std::unique_ptr<Collectives> make_local_collectives(std::string host) {
  return make_local_collectives(std::move(host), HostNames());
}

std::unique_ptr<Collectives> make_local_collectives(std::string host, HostNames names) {
  return std::make_unique<LocalCollectives>(std::move(host), std::move(names));
}

}  // namespace cairn
