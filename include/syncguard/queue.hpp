/*
 * The completion queue in C++: locks for event loops. queue.h describes how requests, completions
 * and losses work. A lock that a completion hands out may be released with release() of the queue,
 * which never waits for the store, or destroyed like any other lock, which waits.
 */
#ifndef SYNCGUARD_QUEUE_HPP
#define SYNCGUARD_QUEUE_HPP

#include <optional>

#include "backend.hpp"
#include "queue_handle.hpp"

namespace syncguard
{

/* May be used by several threads, as long as none moves or destroys it at the same time. */
class queue
{
  public:
    queue() noexcept = default; /* empty */

    /* Opens a queue; open() is the form that does not throw. */
    explicit queue(const backend &store, int max_threads = 4)
    {
        syncguard_error details;
        detail::check(handle_.open(store.get(), max_threads, &details), details);
    }

    [[nodiscard]] static queue open(const backend &store, int max_threads,
                                    std::error_code &code) noexcept
    {
        queue opened;
        detail::store(opened.handle_.open(store.get(), max_threads, nullptr), code);
        return opened;
    }

    /* Readable while there are completions. */
    int fd() const noexcept
    {
        return syncguard_queue_fd(get());
    }

    /* Takes the next completion; returns no value if there is none. */
    [[nodiscard]] std::optional<completion> next() noexcept
    {
        completion taken;
        return handle_.next(taken) ? std::optional<completion>(std::move(taken)) : std::nullopt;
    }

    /* Starts an acquire. A loss is a completion, so the options have no on_lost. */
    syncguard_request acquire(std::string_view key, const lock_options &options, void *context)
    {
        syncguard_request request = 0;
        syncguard_error details;
        detail::check(handle_.acquire(key, options, context, request, &details), details);
        return request;
    }

    syncguard_request acquire(std::string_view key, const lock_options &options, void *context,
                              std::error_code &code) noexcept
    {
        syncguard_request request = 0;
        detail::store(handle_.acquire(key, options, context, request, nullptr), code);
        return request;
    }

    /* Starts an extend. Until it has completed, the lock may be moved, and released with release()
     * of the queue; it must not be destroyed, detached or released by itself. */
    syncguard_request extend(lock &held, std::chrono::milliseconds ttl, void *context)
    {
        syncguard_request request = 0;
        syncguard_error details;
        detail::check(handle_.extend(held, ttl, context, request, &details), details);
        return request;
    }

    syncguard_request extend(lock &held, std::chrono::milliseconds ttl, void *context,
                             std::error_code &code) noexcept
    {
        syncguard_request request = 0;
        detail::store(handle_.extend(held, ttl, context, request, nullptr), code);
        return request;
    }

    /* Starts a release. The lock is empty afterwards, unless this fails. A lock of
     * backend::acquire with on_lost is refused (InvalidArgument) and stays held: the library may
     * call its function until the handle is freed, so release or destroy the lock itself. */
    syncguard_request release(lock &&held, void *context)
    {
        syncguard_request request = 0;
        syncguard_error details;
        detail::check(handle_.release(held, context, request, &details), details);
        return request;
    }

    syncguard_request release(lock &&held, void *context, std::error_code &code) noexcept
    {
        syncguard_request request = 0;
        detail::store(handle_.release(held, context, request, nullptr), code);
        return request;
    }

    /* Ends a request early; it still completes. False if its completion has been taken. */
    bool cancel(syncguard_request request) noexcept
    {
        return syncguard_queue_cancel(get(), request);
    }

    explicit operator bool() const noexcept
    {
        return get() != nullptr;
    }

    syncguard_queue *get() const noexcept
    {
        return handle_.get();
    }

  private:
    detail::queue_handle handle_;
};

} // namespace syncguard

#endif
