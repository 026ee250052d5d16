/* What the core needs to know of the built-in backend. */
#ifndef SG_MEMORY_H
#define SG_MEMORY_H

#include "syncguard/sys/backend.h"

extern const syncguard_module sg_memory_module;

#endif
