/*
 * Completions in C++: what a queue reports of its requests and locks; queue.h describes the fields.
 */
#ifndef SYNCGUARD_COMPLETION_HPP
#define SYNCGUARD_COMPLETION_HPP

#include "lock.hpp"
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

} // namespace syncguard

#endif
