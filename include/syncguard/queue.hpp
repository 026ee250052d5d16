/*
 * The completion queue in C++: locks for event loops. queue.h describes how requests, completions
 * and losses work. A lock that a completion hands out may be released with release() of the queue,
 * which never waits for the store, or destroyed like any other lock, which waits.
 */
#ifndef SYNCGUARD_QUEUE_HPP
#define SYNCGUARD_QUEUE_HPP

#include <optional>

#include "backend.hpp"
#include "queue.h"

namespace syncguard
{

struct completion {
    syncguard_completion c; /* c.lock is NULL if held has it */
    lock held;              /* of an acquire that succeeded */

    /* The failure; empty for a result (see c.status). */
    std::error_code code() const noexcept
    {
        std::error_code result;
        detail::store(c.status, result);
        return result;
    }
};

/* May be used by several threads, as long as none moves or destroys it at the same time. */
class queue
{
  public:
    queue() noexcept = default; /* empty */

    explicit queue(const backend &store, int max_threads = 4)
    {
        syncguard_queue_options options = SYNCGUARD_QUEUE_OPTIONS_INIT;
        options.max_threads = max_threads;
        syncguard_queue *made = nullptr;
        syncguard_error details;
        detail::check(syncguard_queue_open(store.get(), &options, &made, &details), details);
        handle_.reset(made);
    }

    /* Readable while there are completions. */
    int fd() const noexcept
    {
        return syncguard_queue_fd(handle_.get());
    }

    /* Takes the next completion; returns no value if there is none. */
    [[nodiscard]] std::optional<completion> next() noexcept
    {
        completion taken;
        if (!syncguard_queue_next(handle_.get(), &taken.c))
            return std::nullopt;
        if (taken.c.kind == SYNCGUARD_COMPLETION_ACQUIRE)
            taken.held.handle_.reset(std::exchange(taken.c.lock, nullptr));
        return taken;
    }

    /* Starts an acquire. A loss is a completion, so the options have no on_lost. */
    syncguard_request acquire(std::string_view key, const lock_options &options, void *context)
    {
        syncguard_request request = 0;
        syncguard_error details;
        detail::check(start(key, options, context, request, &details), details);
        return request;
    }

    syncguard_request acquire(std::string_view key, const lock_options &options, void *context,
                              std::error_code &code) noexcept
    {
        syncguard_request request = 0;
        detail::store(start(key, options, context, request, nullptr), code);
        return request;
    }

    /* Starts a release. The lock is empty afterwards, unless this fails. A lock of
     * backend::acquire with on_lost is refused (InvalidArgument) and stays held: the library may
     * call its function until the handle is freed, so release or destroy the lock itself. */
    syncguard_request release(lock &&held, void *context)
    {
        syncguard_request request = 0;
        syncguard_error details;
        detail::check(start_release(held, context, request, &details), details);
        return request;
    }

    syncguard_request release(lock &&held, void *context, std::error_code &code) noexcept
    {
        syncguard_request request = 0;
        detail::store(start_release(held, context, request, nullptr), code);
        return request;
    }

    /* Ends a request early; it still completes. False if its completion has been taken. */
    bool cancel(syncguard_request request) noexcept
    {
        return syncguard_queue_cancel(handle_.get(), request);
    }

    explicit operator bool() const noexcept
    {
        return handle_ != nullptr;
    }

    /* For syncguard_lock_extend_async. */
    syncguard_queue *get() const noexcept
    {
        return handle_.get();
    }

  private:
    struct closer {
        void operator()(syncguard_queue *handle) const noexcept
        {
            syncguard_queue_close(handle);
        }
    };

    syncguard_status start(std::string_view key, const lock_options &options, void *context,
                           syncguard_request &request, syncguard_error *details) noexcept
    {
        const detail::text name(key);
        if (!name.fits())
            return detail::refuse(details, "the key is too long or has a NUL inside");
        if (options.on_lost_)
            return detail::refuse(details, "a queue reports a loss as a completion");
        return syncguard_lock_acquire_async(handle_.get(), name.get(), &options.c(), context,
                                            &request, details);
    }

    syncguard_status start_release(lock &held, void *context, syncguard_request &request,
                                   syncguard_error *details) noexcept
    {
        if (held.on_lost_)
            return detail::refuse(details, "a queue does not release a lock with on_lost");
        syncguard_status status = syncguard_lock_release_async(handle_.get(), held.get(), nullptr,
                                                               context, &request, details);
        if (status == SYNCGUARD_OK)
            (void)held.handle_.release();
        return status;
    }

    std::unique_ptr<syncguard_queue, closer> handle_;
};

} // namespace syncguard

#endif
