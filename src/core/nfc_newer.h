/*
 * Characters that the installed utf8proc may not know yet. All implementations
 * that share a store must normalize in the same way, whatever the age of the
 * library that each was built with. An entry here counts only if utf8proc calls
 * the character unassigned.
 */
#ifndef SG_CORE_NFC_NEWER_H
#define SG_CORE_NFC_NEWER_H

#include "syncguard/types.h"

/* Canonical combining class; 0 for anything that is not in the table. */
int sg_newer_class(int32_t code);
/* Writes the two halves of a canonical decomposition. */
bool sg_newer_split(int32_t code, int32_t halves[2]);
/* The character composed of the two, or 0. */
int32_t sg_newer_join(int32_t first, int32_t second);

#endif
