/* Maps Firestore's status words and HTTP statuses to our statuses. */
#ifndef SG_FIRESTORE_ERRORS_H
#define SG_FIRESTORE_ERRORS_H

#include "syncguard/sys/fail.h"

typedef struct sg_firestore_error_class {
    const char *word; /* the native code */
    long http;        /* 0: none of its own */
    syncguard_status status;
    bool conflict;              /* of a commit: a precondition did not hold */
    bool may_have_been_applied; /* of a write */
} sg_firestore_error_class;

/* Classifies by the status word (NULL: none), or by the HTTP status if a proxy answered; never by
 * texts, which may hold document names and are not passed on. */
const sg_firestore_error_class *sg_firestore_classify(const char *word, long http);

#endif
