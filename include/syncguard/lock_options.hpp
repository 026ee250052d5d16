/*
 * Options of one lock in C++; lock_options.h describes their meaning and defaults.
 */
#ifndef SYNCGUARD_LOCK_OPTIONS_HPP
#define SYNCGUARD_LOCK_OPTIONS_HPP

#include <functional>
#include <utility>

#include "lock_options.h"
#include "options.hpp"

namespace syncguard
{
namespace detail
{
class backend_handle;
class queue_handle;
} // namespace detail

/* Why a lock was lost; see lock_options.h. */
enum class lost_reason {
    no = SYNCGUARD_LOST_NO,
    absent = SYNCGUARD_LOST_ABSENT,
    unconfirmed = SYNCGUARD_LOST_UNCONFIRMED,
    max_hold = SYNCGUARD_LOST_MAX_HOLD,
    forked = SYNCGUARD_LOST_FORKED
};

/*
 * Called once, on a thread of the library, when ownership of a lock with auto_extend can no longer
 * be guaranteed. It must not throw (this would terminate the program), and must not destroy or move
 * the lock.
 */
using lost_function = std::function<void(lost_reason)>;

class lock_options
{
  public:
    lock_options &ttl(std::chrono::milliseconds value) noexcept
    {
        c_.ttl_ms = value.count();
        return *this;
    }

    /* Waits up to this long, without a limit on retries. */
    lock_options &wait(std::chrono::milliseconds value) noexcept
    {
        /* SYNCGUARD_WAIT_FOREVER is -1: a negative wait must not be taken for it. */
        syncguard_lock_options_wait(&c_, value.count() < 0 ? INT64_MIN : value.count());
        return *this;
    }

    lock_options &wait_forever() noexcept
    {
        syncguard_lock_options_wait(&c_, SYNCGUARD_WAIT_FOREVER);
        return *this;
    }

    lock_options &auto_extend(bool value = true) noexcept
    {
        c_.auto_extend = value;
        return *this;
    }

    lock_options &retry_unavailable(bool value = true) noexcept
    {
        c_.retry_unavailable = value;
        return *this;
    }

    lock_options &max_hold(std::chrono::milliseconds value) noexcept
    {
        c_.max_hold_ms = value.count();
        return *this;
    }

    lock_options &min_hold(std::chrono::milliseconds value) noexcept
    {
        c_.min_hold_ms = value.count();
        return *this;
    }

    /* At most this many holders of the key at a time; see slots.h. */
    lock_options &slots(int value) noexcept
    {
        c_.slots = value;
        return *this;
    }

    lock_options &abort(const abort_object &object) noexcept
    {
        c_.abort_object = object.get();
        return *this;
    }

    /* Needs auto_extend. The lock stores the function. */
    lock_options &on_lost(lost_function function)
    {
        on_lost_ = std::move(function);
        return *this;
    }

    syncguard_lock_options &c() noexcept
    {
        return c_;
    }

    const syncguard_lock_options &c() const noexcept
    {
        return c_;
    }

  private:
    friend class detail::backend_handle;
    friend class detail::queue_handle;
    syncguard_lock_options c_ = SYNCGUARD_LOCK_OPTIONS_INIT;
    lost_function on_lost_;
};

} // namespace syncguard

#endif
