/* Connects a handle to its files, and notices that they were removed or replaced. */
#ifndef SG_SQLITE_ATTACH_H
#define SG_SQLITE_ATTACH_H

#include "backend.h"

/* Inside the gate, before anything else: connects if necessary, and checks that the connected files
 * are still those at the paths. Busy while that is not possible yet. */
syncguard_status sg_sqlite_attach(sg_sqlite *sqlite, syncguard_error *err);
/* Leaves the gate, and then logs what sg_sqlite_attach has found, so that a log callback delays no
 * other thread. */
void sg_sqlite_leave(sg_sqlite *sqlite);
/* Closes the connection, without a checkpoint. */
void sg_sqlite_detach(sg_sqlite *sqlite);
/* Whether the connected files are those at the paths. */
bool sg_sqlite_in_place(const sg_sqlite *sqlite);

#endif
