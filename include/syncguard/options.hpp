/*
 * Options in C++. Each setter changes one field of the C struct and returns the options, so that
 * calls can be chained; options.h describes the fields and their defaults. c() returns the struct,
 * for fields without a setter.
 */
#ifndef SYNCGUARD_OPTIONS_HPP
#define SYNCGUARD_OPTIONS_HPP

#include <chrono>
#include <memory>

#include "error.hpp"
#include "options.h"

namespace syncguard
{

/* Ends calls, when triggered from another thread or a signal handler; must outlive those calls. */
class abort_object
{
  public:
    /* Creates an object; create() is the form that does not throw. */
    abort_object()
    {
        syncguard_error details;
        syncguard_abort *made = nullptr;
        detail::check(syncguard_abort_create(&made, &details), details);
        handle_.reset(made);
    }

    [[nodiscard]] static abort_object create(std::error_code &code) noexcept
    {
        syncguard_abort *made = nullptr;
        detail::store(syncguard_abort_create(&made, nullptr), code);
        return abort_object(made);
    }

    explicit operator bool() const noexcept
    {
        return handle_ != nullptr;
    }

    void trigger() noexcept
    {
        syncguard_abort_trigger(handle_.get());
    }

    bool triggered() const noexcept
    {
        return syncguard_abort_triggered(handle_.get());
    }

    syncguard_abort *get() const noexcept
    {
        return handle_.get();
    }

  private:
    struct freer {
        void operator()(syncguard_abort *handle) const noexcept
        {
            syncguard_abort_free(handle);
        }
    };
    explicit abort_object(syncguard_abort *handle) noexcept : handle_(handle)
    {
    }
    std::unique_ptr<syncguard_abort, freer> handle_;
};

/* Limits of one call. Without a timeout, that of the backend applies. */
class call_options
{
  public:
    call_options &timeout(std::chrono::milliseconds value) noexcept
    {
        c_.timeout_ms = value.count();
        return *this;
    }

    call_options &abort(const abort_object &object) noexcept
    {
        c_.abort_object = object.get();
        return *this;
    }

    syncguard_call &c() noexcept
    {
        return c_;
    }

    const syncguard_call &c() const noexcept
    {
        return c_;
    }

  private:
    syncguard_call c_ = SYNCGUARD_CALL_INIT;
};

/* Options of a backend. Contexts of callbacks in c() must outlive the backend and all its locks. */
class backend_options
{
  public:
    backend_options &timeout(std::chrono::milliseconds value) noexcept
    {
        c_.timeout_ms = value.count();
        return *this;
    }

    backend_options &dispose_timeout(std::chrono::milliseconds value) noexcept
    {
        c_.dispose_timeout_ms = value.count();
        return *this;
    }

    /* The text is copied when the backend is opened, and must live until then. */
    backend_options &owner(const char *value) noexcept
    {
        c_.owner = value;
        return *this;
    }

    syncguard_options &c() noexcept
    {
        return c_;
    }

    const syncguard_options &c() const noexcept
    {
        return c_;
    }

  private:
    syncguard_options c_ = SYNCGUARD_OPTIONS_INIT;
};

} // namespace syncguard

#endif
