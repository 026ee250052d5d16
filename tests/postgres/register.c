/* Static programs load no modules: this registers the one under test before main. */
#include "syncguard/sys/backend.h"

extern const syncguard_module syncguard_module_postgres;

__attribute__((constructor)) static void register_module(void)
{
    (void)!syncguard_module_register(&syncguard_module_postgres, NULL);
}
