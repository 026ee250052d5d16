/*
 * Backends in C++: open a store, acquire locks, query them.
 */
#ifndef SYNCGUARD_BACKEND_HPP
#define SYNCGUARD_BACKEND_HPP

#include <optional>

#include "backend_handle.hpp"

namespace syncguard
{

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
        detail::check(opened.handle_.open_url(url, options, &details), details);
        return opened;
    }

    [[nodiscard]] static backend open(std::string_view url, const backend_options &options,
                                      std::error_code &code)
    {
        backend opened;
        detail::store(opened.handle_.open_url(url, options, nullptr), code);
        return opened;
    }

    /* Opens the default store of this user; see syncguard_default_url. */
    [[nodiscard]] static backend open_default(const backend_options &options = {})
    {
        backend opened;
        syncguard_error details;
        detail::check(opened.handle_.open(nullptr, options, &details), details);
        return opened;
    }

    [[nodiscard]] static backend open_default(const backend_options &options, std::error_code &code)
    {
        backend opened;
        detail::store(opened.handle_.open(nullptr, options, nullptr), code);
        return opened;
    }

    /* Acquires key, and waits for it as the options say. */
    [[nodiscard]] lock acquire(std::string_view key, const lock_options &options = {})
    {
        lock out;
        syncguard_error details;
        detail::check(handle_.take(syncguard_lock_acquire, key, options, out, &details), details);
        return out;
    }

    [[nodiscard]] lock acquire(std::string_view key, const lock_options &options,
                               std::error_code &code)
    {
        lock out;
        detail::store(handle_.take(syncguard_lock_acquire, key, options, out, nullptr), code);
        return out;
    }

    /* Makes one attempt; returns no value if another owner holds the key. */
    [[nodiscard]] std::optional<lock> try_acquire(std::string_view key,
                                                  const lock_options &options = {})
    {
        lock out;
        syncguard_error details;
        detail::check(handle_.take(syncguard_lock_try, key, options, out, &details), details);
        return out ? std::optional<lock>(std::move(out)) : std::nullopt;
    }

    [[nodiscard]] std::optional<lock> try_acquire(std::string_view key, const lock_options &options,
                                                  std::error_code &code)
    {
        lock out;
        detail::store(handle_.take(syncguard_lock_try, key, options, out, nullptr), code);
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
        detail::check(handle_.ask(key, limits, locked, &details), details);
        return locked;
    }

    [[nodiscard]] bool is_locked(std::string_view key, const call_options &limits,
                                 std::error_code &code) noexcept
    {
        bool locked = false;
        detail::store(handle_.ask(key, limits, locked, nullptr), code);
        return locked;
    }

    /* Releases the lock with this id, for locks that were detached. False if there is none. */
    bool release(std::string_view lock_id, const call_options &limits = {})
    {
        syncguard_error details;
        return detail::check(handle_.give_back(lock_id, limits, &details), details) == SYNCGUARD_OK;
    }

    bool release(std::string_view lock_id, const call_options &limits,
                 std::error_code &code) noexcept
    {
        return detail::store(handle_.give_back(lock_id, limits, nullptr), code) == SYNCGUARD_OK;
    }

    explicit operator bool() const noexcept
    {
        return handle_.get() != nullptr;
    }

    syncguard_backend *get() const noexcept
    {
        return handle_.get();
    }

  private:
    detail::backend_handle handle_;
};

} // namespace syncguard

#endif
