/* The keys of the slots of a name: see syncguard/slots.h. */
#ifndef SG_SLOTS_H
#define SG_SLOTS_H

#include "syncguard/slots.h"

/* The longest suffix, including its NUL. */
#define SG_SLOT_SUFFIX_SIZE 10

/* Whether a normalized name can have slots. */
syncguard_status sg_slot_name_check(size_t length, syncguard_error *err);
/* Writes the suffix that makes a name the key of a slot; returns its length. */
size_t sg_slot_suffix(int slot, char out[SG_SLOT_SUFFIX_SIZE]);

#endif
