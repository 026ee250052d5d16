/*
 * The C handle of a backend, and the calls that take it. Not for applications: backend.hpp is.
 */
#ifndef SYNCGUARD_BACKEND_HANDLE_HPP
#define SYNCGUARD_BACKEND_HANDLE_HPP

#include <string>

#include "lock.hpp"
#include "text.hpp"

namespace syncguard
{
namespace detail
{

inline void call_lost(void *context, syncguard_lock *, syncguard_lost_reason reason) noexcept
{
    (*static_cast<lost_function *>(context))(static_cast<lost_reason>(reason));
}

/* Empty until it is opened. Details of a failure may be NULL. */
class backend_handle
{
  public:
    using take_function = syncguard_status (*)(syncguard_backend *, const char *,
                                               const syncguard_lock_options *, syncguard_lock **,
                                               syncguard_error *);

    syncguard_status open(const char *url, const backend_options &options,
                          syncguard_error *details) noexcept
    {
        syncguard_backend *made = nullptr;
        syncguard_status status = syncguard_open(url, &options.c(), &made, details);
        handle_.reset(made);
        return status;
    }

    syncguard_status open_url(std::string_view url, const backend_options &options,
                              syncguard_error *details)
    {
        if (url.find('\0') != std::string_view::npos)
            return refuse(details, "the URL has a NUL inside");
        return open(std::string(url).c_str(), options, details);
    }

    syncguard_status take(take_function function, std::string_view key, const lock_options &options,
                          lock &out, syncguard_error *details)
    {
        const text name(key);
        if (!name.fits())
            return refuse(details, "the key is too long or has a NUL inside");
        syncguard_lock_options c = options.c();
        if (options.on_lost_) {
            out.on_lost_ = std::make_unique<lost_function>(options.on_lost_);
            c.on_lost = call_lost;
            c.on_lost_context = out.on_lost_.get();
        }
        syncguard_lock *made = nullptr;
        syncguard_status status = function(get(), name.get(), &c, &made, details);
        out.handle_.reset(made);
        return status;
    }

    syncguard_status ask(std::string_view key, const call_options &limits, bool &locked,
                         syncguard_error *details) noexcept
    {
        const text name(key);
        return name.fits() ? syncguard_is_locked(get(), name.get(), &limits.c(), &locked, details)
                           : refuse(details, "the key is too long or has a NUL inside");
    }

    syncguard_status give_back(std::string_view lock_id, const call_options &limits,
                               syncguard_error *details) noexcept
    {
        const text id(lock_id);
        return id.fits() ? syncguard_release(get(), id.get(), &limits.c(), details)
                         : refuse(details, "the lock id is too long or has a NUL inside");
    }

    syncguard_backend *get() const noexcept
    {
        return handle_.get();
    }

  private:
    struct closer {
        void operator()(syncguard_backend *handle) const noexcept
        {
            syncguard_close(handle);
        }
    };
    std::unique_ptr<syncguard_backend, closer> handle_;
};

} // namespace detail
} // namespace syncguard

#endif
