/* Invariants that are checked where tests run with a sanitizer, and cost nothing in the product. */
#ifndef SG_UTIL_CHECK_H
#define SG_UTIL_CHECK_H

#ifdef SYNCGUARD_CHECKED
#define SG_CHECK(condition) ((condition) ? (void)0 : __builtin_trap())
#else
#define SG_CHECK(condition) ((void)sizeof(condition))
#endif

#endif
