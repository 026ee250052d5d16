/* Names of documents and the base URLs of calls. Immutable after sg_firestore_names_init. */
#ifndef SG_FIRESTORE_NAMES_H
#define SG_FIRESTORE_NAMES_H

#include "syncguard/firestore.h"
#include "syncguard/sys/names.h"

#define SG_FIRESTORE_PATH_BYTES 6144 /* Firestore's limit on a whole document name */

typedef struct sg_firestore_names {
    char *documents;     /* projects/P/databases/D/documents */
    char *collection;    /* path below documents */
    char *fences;        /* likewise */
    char *collection_id; /* last segment of collection, within it */
    char *url;           /* of the database's documents */
    char *parent_url;    /* of the parent of the lock collection: queries start there */
} sg_firestore_names;

/* InvalidArgument for names that Firestore would refuse. */
syncguard_status sg_firestore_names_init(sg_firestore_names *names,
                                         const syncguard_firestore_options *options,
                                         const char *base_url, syncguard_error *err);
void sg_firestore_names_destroy(sg_firestore_names *names);
/* Full names of the documents for a key. fence may be NULL. Buffers of SG_FIRESTORE_PATH_BYTES. */
syncguard_status sg_firestore_names_of(const sg_firestore_names *names, const char *key,
                                       size_t length, char *lock, char *fence,
                                       syncguard_error *err);

#endif
