/* One HTTP request in the caller's thread, within its limits. */
#ifndef SG_FIRESTORE_HTTP_H
#define SG_FIRESTORE_HTTP_H

#include "pool.h"

typedef struct sg_firestore_http_request {
    const char *url;
    const char *body; /* NULL: GET */
    size_t body_length;
    const char *headers[2]; /* whole lines; NULL: none */
    bool direct;            /* never through a proxy */
} sg_firestore_http_request;

/* Any HTTP answer is OK. The caller must call sg_firestore_reply_free in every case. */
syncguard_status sg_firestore_transfer(sg_firestore_pool *pool,
                                       const sg_firestore_http_request *request,
                                       const syncguard_limits *limits, sg_firestore_reply *reply,
                                       syncguard_error *err);
/* Wipes the body before it is freed: it may hold a token. */
void sg_firestore_reply_free(sg_firestore_reply *reply);

#endif
