/*
 * Backends in C++: open a store, acquire locks, query them.
 */
#ifndef SYNCGUARD_BACKEND_HPP
#define SYNCGUARD_BACKEND_HPP

#include <optional>
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

} // namespace detail

/* May be shared by any number of threads, as long as none moves or destroys it at the same time. */
class backend
{
  public:
    backend() noexcept = default; /* empty */

    /* Opens a store by URL; see backend.h. */
    [[nodiscard]] static backend open(std::string_view url, const backend_options &options = {})
    {
        backend opened;
        syncguard_error details;
        detail::check(opened.open_url(url, options, &details), details);
        return opened;
    }

    [[nodiscard]] static backend open(std::string_view url, const backend_options &options,
                                      std::error_code &code)
    {
        backend opened;
        detail::store(opened.open_url(url, options, nullptr), code);
        return opened;
    }

    /* Opens the default store of this user; see syncguard_default_url. */
    [[nodiscard]] static backend open_default(const backend_options &options = {})
    {
        backend opened;
        syncguard_error details;
        detail::check(opened.open_c(nullptr, options, &details), details);
        return opened;
    }

    [[nodiscard]] static backend open_default(const backend_options &options, std::error_code &code)
    {
        backend opened;
        detail::store(opened.open_c(nullptr, options, nullptr), code);
        return opened;
    }

    /* Acquires key, and waits for it as the options say. */
    [[nodiscard]] lock acquire(std::string_view key, const lock_options &options = {})
    {
        lock out;
        syncguard_error details;
        detail::check(take(syncguard_lock_acquire, key, options, out, &details), details);
        return out;
    }

    [[nodiscard]] lock acquire(std::string_view key, const lock_options &options,
                               std::error_code &code)
    {
        lock out;
        detail::store(take(syncguard_lock_acquire, key, options, out, nullptr), code);
        return out;
    }

    /* Makes one attempt; returns no value if another owner holds the key. */
    [[nodiscard]] std::optional<lock> try_acquire(std::string_view key,
                                                  const lock_options &options = {})
    {
        lock out;
        syncguard_error details;
        detail::check(take(syncguard_lock_try, key, options, out, &details), details);
        return out ? std::optional<lock>(std::move(out)) : std::nullopt;
    }

    [[nodiscard]] std::optional<lock> try_acquire(std::string_view key, const lock_options &options,
                                                  std::error_code &code)
    {
        lock out;
        detail::store(take(syncguard_lock_try, key, options, out, nullptr), code);
        return out ? std::optional<lock>(std::move(out)) : std::nullopt;
    }

    /* Calls work(lock &) while the lock is held, and returns its result. The lock is released
     * however work ends; an exception is passed on to the caller. */
    template <class Work>
    decltype(auto) with_lock(std::string_view key, const lock_options &options, Work &&work)
    {
        lock held = acquire(key, options);
        return std::forward<Work>(work)(held);
    }

    /* Whether key is held right now. Do not base a change on the result: it may be out of date. */
    [[nodiscard]] bool is_locked(std::string_view key, const call_options &limits = {})
    {
        bool locked = false;
        syncguard_error details;
        detail::check(ask(key, limits, locked, &details), details);
        return locked;
    }

    [[nodiscard]] bool is_locked(std::string_view key, const call_options &limits,
                                 std::error_code &code) noexcept
    {
        bool locked = false;
        detail::store(ask(key, limits, locked, nullptr), code);
        return locked;
    }

    /* Releases the lock with this id, for locks that were detached. False if there is none. */
    bool release(std::string_view lock_id, const call_options &limits = {})
    {
        syncguard_error details;
        return detail::check(give_back(lock_id, limits, &details), details) == SYNCGUARD_OK;
    }

    bool release(std::string_view lock_id, const call_options &limits,
                 std::error_code &code) noexcept
    {
        return detail::store(give_back(lock_id, limits, nullptr), code) == SYNCGUARD_OK;
    }

    explicit operator bool() const noexcept
    {
        return handle_ != nullptr;
    }

    syncguard_backend *get() const noexcept
    {
        return handle_.get();
    }

  private:
    using take_function = syncguard_status (*)(syncguard_backend *, const char *,
                                               const syncguard_lock_options *, syncguard_lock **,
                                               syncguard_error *);
    struct closer {
        void operator()(syncguard_backend *handle) const noexcept
        {
            syncguard_close(handle);
        }
    };

    syncguard_status open_c(const char *url, const backend_options &options,
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
            return detail::refuse(details, "the URL has a NUL inside");
        return open_c(std::string(url).c_str(), options, details);
    }

    syncguard_status take(take_function function, std::string_view key, const lock_options &options,
                          lock &out, syncguard_error *details)
    {
        const detail::text name(key);
        if (!name.fits())
            return detail::refuse(details, "the key is too long or has a NUL inside");
        syncguard_lock_options c = options.c();
        if (options.on_lost_) {
            out.on_lost_ = std::make_unique<lost_function>(options.on_lost_);
            c.on_lost = detail::call_lost;
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
        const detail::text name(key);
        return name.fits() ? syncguard_is_locked(get(), name.get(), &limits.c(), &locked, details)
                           : detail::refuse(details, "the key is too long or has a NUL inside");
    }

    syncguard_status give_back(std::string_view lock_id, const call_options &limits,
                               syncguard_error *details) noexcept
    {
        const detail::text id(lock_id);
        return id.fits() ? syncguard_release(get(), id.get(), &limits.c(), details)
                         : detail::refuse(details, "the lock id is too long or has a NUL inside");
    }

    std::unique_ptr<syncguard_backend, closer> handle_;
};

} // namespace syncguard

#endif
