/* Reporting findings from the operation `diagnose`, and findings that several stores have in
 * common. */
#ifndef SYNCGUARD_SYS_FINDINGS_H
#define SYNCGUARD_SYS_FINDINGS_H

#include "../diagnostics.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The receiver of the findings. */
typedef struct syncguard_findings {
    syncguard_finding_fn fn;
    void *context;
} syncguard_findings;

/* Reports a finding that is fine, or one of the given severity. */
SYNCGUARD_API void syncguard_report_fine(const syncguard_findings *to, const char *topic,
                                         const char *text);
SYNCGUARD_API void syncguard_report(const syncguard_findings *to, syncguard_severity severity,
                                    const char *topic, const char *text, const char *why,
                                    const char *change);

/*
 * Topic "clock", for stores whose own clock determines expiry. offset_us is the store's clock less
 * ours, error_us its error bound. The times that people are shown are wrong by the offset; locks
 * are affected when the store's clock is corrected.
 */
SYNCGUARD_API void syncguard_report_clock(const syncguard_findings *to, int64_t offset_us,
                                          int64_t error_us);

/*
 * Topic "replica_clock", for a server that may become the primary: it compares the expiries that
 * the primary has computed with its own clock. ahead_us is its clock less the primary's. The second
 * function says why there is no such comparison, which is no problem.
 */
SYNCGUARD_API void syncguard_report_replica_clock(const syncguard_findings *to, const char *replica,
                                                  int64_t ahead_us, int64_t error_us);
SYNCGUARD_API void syncguard_report_no_replica_clock(const syncguard_findings *to,
                                                     const char *replica, const char *reason);

/* Topic "tls", for a connection to host (NULL or a path: a socket of this machine). verified: the
 * certificate was checked. change says how to turn on what is missing. */
SYNCGUARD_API void syncguard_report_tls(const syncguard_findings *to, const char *host,
                                        bool encrypted, bool verified, const char *change);

/* True for a loopback name or address, a path, and NULL or "". */
SYNCGUARD_API bool syncguard_host_is_local(const char *host);

#ifdef __cplusplus
}
#endif

#endif
