#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/e2e/support/served_test.hpp"

namespace cairn::e2e {

// Servers that are the ranks of one group. Each has a cache of the same name and shape, in its own
// layout.
class ServerGroup {
 public:
  struct Rank {
    std::unique_ptr<ServerProcess> server;
    std::unique_ptr<Rest> rest;
  };
  enum class Collective : std::uint8_t {
    local,  // on the host runtime
    nccl,   // on the fakes of libcudart and libnccl
  };
  // The ones that this build has.
  static std::vector<Collective> collectives();
  struct Setup {
    std::size_t world_size = 2;
    Collective collective = Collective::local;
    std::vector<std::string> environment = {};  // of rank 0
  };
  // `settings` is the configuration's section "groups".
  explicit ServerGroup(const Setup& setup, json settings = json::object());

  std::size_t size() const { return ranks_.size(); }
  Rank& operator[](std::size_t rank) { return ranks_[rank]; }

  // Creates a cache on every rank from `body(rank)`.
  template <class Body>
  void make_cache(const std::string& name, Body&& body) {
    for (std::size_t rank = 0; rank < size(); ++rank) {
      EXPECT_THAT(ranks_[rank].rest->put("/v1/caches/" + name, body(rank)), has_status(201));
    }
  }
  // Rank 0's reply, and that of another rank.
  Reply invite(const std::string& group, std::size_t world_size);
  Reply join(const std::string& group, std::size_t rank, const std::string& unique_id,
             std::size_t world_size);
  // Joins all ranks and waits until the group is ready.
  void form(const std::string& group);
  std::string state(const std::string& group, std::size_t rank);

  // Asks these ranks for their part of an operation; returns the transfers in this order.
  std::vector<std::string> start(const std::string& group, const std::string& operation,
                                 const json& body, const std::vector<std::size_t>& ranks);
  // Runs an operation on every rank to its end; returns the transfers' documents.
  std::vector<json> run(const std::string& group, const std::string& operation, const json& body);
  // The document of a transfer once it has ended.
  json ended(std::size_t rank, const std::string& transfer);

 private:
  fakes::TempDir folder_;
  std::vector<Rank> ranks_;
};

std::string_view to_string(ServerGroup::Collective collective);

}  // namespace cairn::e2e
