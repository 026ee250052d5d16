/*
 * The C handle of a queue, and the calls that take it. Not for applications: queue.hpp is.
 */
#ifndef SYNCGUARD_QUEUE_HANDLE_HPP
#define SYNCGUARD_QUEUE_HANDLE_HPP

#include "completion.hpp"
#include "text.hpp"

namespace syncguard
{
namespace detail
{

/* Empty until it is opened. Details of a failure may be NULL. */
class queue_handle
{
  public:
    syncguard_status open(syncguard_backend *store, int max_threads,
                          syncguard_error *details) noexcept
    {
        syncguard_queue_options options = SYNCGUARD_QUEUE_OPTIONS_INIT;
        options.max_threads = max_threads;
        syncguard_queue *made = nullptr;
        syncguard_status status = syncguard_queue_open(store, &options, &made, details);
        handle_.reset(made);
        return status;
    }

    bool next(completion &taken) noexcept
    {
        if (!syncguard_queue_next(get(), &taken.c))
            return false;
        if (taken.c.kind == SYNCGUARD_COMPLETION_ACQUIRE)
            taken.held.handle_.reset(std::exchange(taken.c.lock, nullptr));
        return true;
    }

    syncguard_status acquire(std::string_view key, const lock_options &options, void *context,
                             syncguard_request &request, syncguard_error *details) noexcept
    {
        const text name(key);
        if (!name.fits())
            return refuse(details, "the key is too long or has a NUL inside");
        if (options.on_lost_)
            return refuse(details, "a queue reports a loss as a completion");
        return syncguard_lock_acquire_async(get(), name.get(), &options.c(), context, &request,
                                            details);
    }

    syncguard_status extend(lock &held, std::chrono::milliseconds ttl, void *context,
                            syncguard_request &request, syncguard_error *details) noexcept
    {
        return syncguard_lock_extend_async(get(), held.get(), ttl.count(), nullptr, context,
                                           &request, details);
    }

    syncguard_status release(lock &held, void *context, syncguard_request &request,
                             syncguard_error *details) noexcept
    {
        if (held.on_lost_)
            return refuse(details, "a queue does not release a lock with on_lost");
        syncguard_status status =
            syncguard_lock_release_async(get(), held.get(), nullptr, context, &request, details);
        if (status == SYNCGUARD_OK)
            (void)held.handle_.release();
        return status;
    }

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
    std::unique_ptr<syncguard_queue, closer> handle_;
};

} // namespace detail
} // namespace syncguard

#endif
