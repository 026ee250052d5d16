/* See errors.h. */
#include "errors.h"

#include <string.h>

static const sg_firestore_error_class classes[] = {
    {"INVALID_ARGUMENT", 400, SYNCGUARD_E_INVALID_ARGUMENT, false, false},
    {"FAILED_PRECONDITION", 0, SYNCGUARD_E_INVALID_ARGUMENT, true, false},
    {"OUT_OF_RANGE", 0, SYNCGUARD_E_INVALID_ARGUMENT, false, false},
    {"UNAUTHENTICATED", 401, SYNCGUARD_E_AUTH_FAILED, false, false},
    {"PERMISSION_DENIED", 403, SYNCGUARD_E_AUTH_FAILED, false, false},
    {"NOT_FOUND", 404, SYNCGUARD_E_INVALID_ARGUMENT, true, false},
    {"ABORTED", 409, SYNCGUARD_E_SERVICE_UNAVAILABLE, true, false},
    {"ALREADY_EXISTS", 0, SYNCGUARD_E_INTERNAL, true, false},
    {"RESOURCE_EXHAUSTED", 429, SYNCGUARD_E_RATE_LIMITED, false, false},
    {"CANCELLED", 499, SYNCGUARD_E_SERVICE_UNAVAILABLE, false, true},
    {"INTERNAL", 500, SYNCGUARD_E_SERVICE_UNAVAILABLE, false, true},
    {"UNAVAILABLE", 503, SYNCGUARD_E_SERVICE_UNAVAILABLE, false, true},
    {"DEADLINE_EXCEEDED", 504, SYNCGUARD_E_NETWORK_TIMEOUT, false, true},
    {"UNKNOWN", 0, SYNCGUARD_E_INTERNAL, false, true},
    {"DATA_LOSS", 0, SYNCGUARD_E_INTERNAL, false, true},
    {"UNIMPLEMENTED", 501, SYNCGUARD_E_INTERNAL, false, false},
    /* These come from a proxy in front of Firestore, not from Firestore itself. */
    {"HTTP_407", 407, SYNCGUARD_E_AUTH_FAILED, false, false},
    {"HTTP_408", 408, SYNCGUARD_E_NETWORK_TIMEOUT, false, true},
    {"HTTP_413", 413, SYNCGUARD_E_INVALID_ARGUMENT, false, false},
    {"HTTP_502", 502, SYNCGUARD_E_SERVICE_UNAVAILABLE, false, true},
};

static const sg_firestore_error_class unknown = {"HTTP", 0, SYNCGUARD_E_INTERNAL, false, true};

const sg_firestore_error_class *sg_firestore_classify(const char *word, long http)
{
    size_t count = sizeof classes / sizeof classes[0];
    for (size_t i = 0; word != NULL && i < count; i++) {
        if (strcmp(classes[i].word, word) == 0)
            return &classes[i];
    }
    for (size_t i = 0; i < count; i++) {
        if (classes[i].http == http)
            return &classes[i];
    }
    return &unknown;
}
