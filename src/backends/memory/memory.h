/* The module of the memory backend, which is linked into the core. */
#ifndef SG_MEMORY_H
#define SG_MEMORY_H

#include "syncguard/sys/backend.h"

extern const syncguard_module sg_memory_module;

#endif
