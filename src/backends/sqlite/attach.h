/* Connecting a handle to its files, and noticing that they were removed or replaced. */
#ifndef SG_SQLITE_ATTACH_H
#define SG_SQLITE_ATTACH_H

#include "backend.h"

/* Inside the gate, before anything else: connects if need be, and checks that the connected files
 * are still those at the paths. Busy while that is not possible yet. */
syncguard_status sg_sqlite_attach(sg_sqlite *sqlite, syncguard_error *err);
/* Leaves the gate, and then logs what attaching has found: a log callback holds up nobody. */
void sg_sqlite_leave(sg_sqlite *sqlite);
/* Closes the connection, without a checkpoint. */
void sg_sqlite_detach(sg_sqlite *sqlite);
/* The connected files are those at the paths. */
bool sg_sqlite_in_place(const sg_sqlite *sqlite);

#endif
