/* Included before everything else: builds the library with another tolerance. */
#include "syncguard/types.h"

#undef SYNCGUARD_TIME_TOLERANCE_MS
#define SYNCGUARD_TIME_TOLERANCE_MS 2000
