#pragma once

#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>

#include "base/assert.hpp"

namespace cairn {

template <class Signature>
class UniqueFunction;

// A move-only callable, so that it can own move-only state. Like C++23's std::move_only_function,
// which g++ 12 has only in C++23 mode. Calling an empty one aborts.
template <class R, class... Args>
class UniqueFunction<R(Args...)> {
 public:
  UniqueFunction() = default;

  template <class F>
  requires(!std::same_as<std::remove_cvref_t<F>, UniqueFunction> &&
           std::is_invocable_r_v<R, std::remove_cvref_t<F>&, Args...>) UniqueFunction(F&& f)
      : target_(std::make_unique<Target<std::remove_cvref_t<F>>>(std::forward<F>(f))) {}

  explicit operator bool() const { return target_ != nullptr; }

  R operator()(Args... args) {
    CAIRN_ASSERT(target_ != nullptr, "an empty function was called");
    return target_->call(std::forward<Args>(args)...);
  }

 private:
  struct Callable {
    virtual ~Callable() = default;
    virtual R call(Args... args) = 0;
  };
  template <class F>
  struct Target final : Callable {
    explicit Target(F&& f) : function(std::move(f)) {}
    explicit Target(const F& f) : function(f) {}
    R call(Args... args) override { return function(std::forward<Args>(args)...); }
    F function;
  };
  std::unique_ptr<Callable> target_;
};

}  // namespace cairn
