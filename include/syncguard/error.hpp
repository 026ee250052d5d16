/*
 * Errors in C++: the failures of syncguard_status as std::error_code and as an exception.
 */
#ifndef SYNCGUARD_ERROR_HPP
#define SYNCGUARD_ERROR_HPP

#include <cstdio>
#include <string>
#include <system_error>

#include "error.h"

namespace syncguard
{

enum class errc {
    service_unavailable = SYNCGUARD_E_SERVICE_UNAVAILABLE,
    auth_failed = SYNCGUARD_E_AUTH_FAILED,
    invalid_argument = SYNCGUARD_E_INVALID_ARGUMENT,
    rate_limited = SYNCGUARD_E_RATE_LIMITED,
    network_timeout = SYNCGUARD_E_NETWORK_TIMEOUT,
    acquisition_timeout = SYNCGUARD_E_ACQUISITION_TIMEOUT,
    aborted = SYNCGUARD_E_ABORTED,
    internal = SYNCGUARD_E_INTERNAL,
    out_of_memory = SYNCGUARD_E_OUT_OF_MEMORY
};

/* Codes can be compared with errc, and with the equivalent std::errc (std::errc::timed_out, ...).
 */
class error_category_type final : public std::error_category
{
  public:
    const char *name() const noexcept override
    {
        return "syncguard";
    }

    std::string message(int value) const override
    {
        const syncguard_status status = static_cast<syncguard_status>(value);
        return std::string(syncguard_status_name(status)) + ": " + syncguard_status_text(status);
    }

    std::error_condition default_error_condition(int value) const noexcept override
    {
        switch (value) {
        case SYNCGUARD_E_AUTH_FAILED:
            return std::errc::permission_denied;
        case SYNCGUARD_E_INVALID_ARGUMENT:
            return std::errc::invalid_argument;
        case SYNCGUARD_E_NETWORK_TIMEOUT:
        case SYNCGUARD_E_ACQUISITION_TIMEOUT:
            return std::errc::timed_out;
        case SYNCGUARD_E_ABORTED:
            return std::errc::operation_canceled;
        case SYNCGUARD_E_OUT_OF_MEMORY:
            return std::errc::not_enough_memory;
        default:
            return std::error_condition(value, *this);
        }
    }
};

inline const std::error_category &error_category() noexcept
{
    static const error_category_type category;
    return category;
}

inline std::error_code make_error_code(errc code) noexcept
{
    return {static_cast<int>(code), error_category()};
}

/* A failure. what() is for people; programs should use code() and native(). */
class error : public std::system_error
{
  public:
    explicit error(const syncguard_error &details)
        : std::system_error(static_cast<int>(details.code), error_category()), details_(details)
    {
    }

    /* The message of the library, without the general text of the code. */
    const char *what() const noexcept override
    {
        return details_.message[0] != '\0' ? details_.message : std::system_error::what();
    }

    /* The store's own code (SQLSTATE, "NOAUTH", an HTTP status), or "". */
    const char *native() const noexcept
    {
        return details_.native;
    }

    /* Hash of the key that the operation was about, or "". */
    const char *key_hash() const noexcept
    {
        return details_.key_hash;
    }

  private:
    syncguard_error details_;
};

namespace detail
{

/* Failures are thrown; results are returned. */
inline syncguard_status check(syncguard_status status, const syncguard_error &details)
{
    if (status < 0)
        throw error(details);
    return status;
}

/* A failure is stored in code; a result clears it. */
inline syncguard_status store(syncguard_status status, std::error_code &code) noexcept
{
    code = status < 0 ? std::error_code(static_cast<int>(status), error_category())
                      : std::error_code();
    return status;
}

/* A failure that is found before the library is called. */
inline syncguard_status refuse(syncguard_error *details, const char *message) noexcept
{
    if (details != nullptr) {
        *details = syncguard_error();
        details->code = SYNCGUARD_E_INVALID_ARGUMENT;
        std::snprintf(details->message, sizeof details->message, "%s", message);
    }
    return SYNCGUARD_E_INVALID_ARGUMENT;
}

} // namespace detail
} // namespace syncguard

template <> struct std::is_error_code_enum<syncguard::errc> : std::true_type {
};

#endif
