// The other side of holder.c: the same locks, taken by transactions of Google's own client as the
// shared document describes them.
//
//     node transactions.js PROJECT KEY GRANTS FOLDER
'use strict';
const crypto = require('crypto');
const fs = require('fs');
const path = require('path');
const { Firestore } = require(path.join(process.env.CLIENT_FOLDER,
  'node_modules/@google-cloud/firestore'));

const [project, key, grants, folder] = process.argv.slice(2);
const TOLERANCE_MS = 1000;
const db = new Firestore({ projectId: project });
const locks = db.collection('locks');
const counter = db.collection('fence_counters').doc(`fence:${key}`);
const inside = path.join(folder, 'inside');
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const isLive = (data) => data && data.expiresAtMs > Date.now() - TOLERANCE_MS;

async function acquire(lockId) {
  return db.runTransaction(async (transaction) => {
    const [lock, fences] = await transaction.getAll(locks.doc(key), counter);
    if (lock.exists && isLive(lock.data())) return null;
    const now = Date.now();
    const last = fences.exists ? BigInt(fences.data().fence) : 0n;
    const fence = (last + 1n).toString().padStart(15, '0');
    transaction.set(locks.doc(key),
      { lockId, key, fence, acquiredAtMs: now, expiresAtMs: now + 30000 });
    transaction.set(counter, { fence, keyDebug: key });
    return fence;
  });
}

async function release(lockId) {
  return db.runTransaction(async (transaction) => {
    const found = await transaction.get(locks.where('lockId', '==', lockId));
    if (found.empty || !isLive(found.docs[0].data())) return false;
    transaction.delete(found.docs[0].ref);
    return true;
  });
}

async function main() {
  for (let left = Number(grants); left > 0;) {
    const lockId = crypto.randomBytes(16).toString('base64url');
    const fence = await acquire(lockId);
    if (fence !== null) {
      fs.mkdirSync(inside);
      console.log(`fence ${fence}`);
      await pause(1);
      fs.rmdirSync(inside);
      if (!await release(lockId)) throw new Error('a held lock was gone');
      left -= 1;
    }
    await pause(2);
  }
  await db.terminate();
}

main().catch((error) => {
  console.log(`overlap or failure: ${error.message}`);
  process.exit(1);
});
