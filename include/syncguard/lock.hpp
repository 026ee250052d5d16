/*
 * Locks in C++: options of one lock, and the lock itself, which is released at the end of its
 * scope. backend.hpp acquires them.
 */
#ifndef SYNCGUARD_LOCK_HPP
#define SYNCGUARD_LOCK_HPP

#include <string_view>

#include "lock.h"
#include "lock_options.hpp"
#include "slots.h"

namespace syncguard
{

/* Const functions may be called on any thread, as long as none moves or destroys the lock then. */
class lock
{
  public:
    lock() noexcept = default;
    lock(lock &&) noexcept = default;

    lock &operator=(lock &&other) noexcept
    {
        lock taken(std::move(other));
        on_lost_.swap(taken.on_lost_);
        handle_.swap(taken.handle_);
        return *this; /* the lock held here before is released with taken, its handle first */
    }

    explicit operator bool() const noexcept
    {
        return handle_ != nullptr;
    }

    std::string_view key() const noexcept
    {
        return handle_ ? syncguard_lock_key(handle_.get()) : std::string_view();
    }

    /* Anyone who has the id can release the lock: not for logs. */
    std::string_view id() const noexcept
    {
        return handle_ ? syncguard_lock_id(handle_.get()) : std::string_view();
    }

    std::string_view fence() const noexcept
    {
        return handle_ ? syncguard_lock_fence(handle_.get()) : std::string_view();
    }

    /* The number of the slot, from 1 on; 0 for a plain lock. */
    int slot() const noexcept
    {
        return handle_ ? syncguard_lock_slot(handle_.get()) : 0;
    }

    bool held() const noexcept
    {
        return handle_ && syncguard_lock_held(handle_.get());
    }

    lost_reason lost() const noexcept
    {
        return handle_ ? static_cast<lost_reason>(syncguard_lock_lost(handle_.get()))
                       : lost_reason::no;
    }

    /* Remaining time of the lease on this machine's own clock. */
    std::chrono::milliseconds remaining() const noexcept
    {
        return std::chrono::milliseconds(handle_ ? syncguard_lock_remaining_ms(handle_.get()) : 0);
    }

    /* Expiry as the store last confirmed it, in the store's time. */
    std::chrono::system_clock::time_point expires_at() const noexcept
    {
        return std::chrono::system_clock::time_point(
            std::chrono::milliseconds(handle_ ? syncguard_lock_expires_at_ms(handle_.get()) : 0));
    }

    /* Releases the lock now. True if this call released it, false if it was no longer held. */
    bool release(const call_options &limits = {})
    {
        syncguard_error details;
        return detail::check(syncguard_lock_release(handle_.get(), &limits.c(), &details),
                             details) == SYNCGUARD_OK;
    }

    bool release(const call_options &limits, std::error_code &code) noexcept
    {
        return detail::store(syncguard_lock_release(handle_.get(), &limits.c(), nullptr), code) ==
               SYNCGUARD_OK;
    }

    /* Extends the lease now. False if the lock is lost. */
    [[nodiscard]] bool extend(std::chrono::milliseconds ttl, const call_options &limits = {})
    {
        syncguard_error details;
        return detail::check(syncguard_lock_extend(handle_.get(), ttl.count(), &limits.c(), nullptr,
                                                   &details),
                             details) == SYNCGUARD_OK;
    }

    [[nodiscard]] bool extend(std::chrono::milliseconds ttl, const call_options &limits,
                              std::error_code &code) noexcept
    {
        return detail::store(
                   syncguard_lock_extend(handle_.get(), ttl.count(), &limits.c(), nullptr, nullptr),
                   code) == SYNCGUARD_OK;
    }

    /* Gives up the handle without releasing the lock; anyone who has its id can still extend or
     * release it. The object is empty afterwards. */
    void detach() noexcept
    {
        syncguard_lock_detach(handle_.release());
    }

    syncguard_lock *get() const noexcept
    {
        return handle_.get();
    }

  private:
    friend class detail::backend_handle;
    friend class detail::queue_handle;
    struct disposer {
        void operator()(syncguard_lock *handle) const noexcept
        {
            syncguard_lock_dispose(handle);
        }
    };
    /* Disposing waits for a running callback, so the handle goes before the function does. */
    std::unique_ptr<lost_function> on_lost_;
    std::unique_ptr<syncguard_lock, disposer> handle_;
};

} // namespace syncguard

#endif
