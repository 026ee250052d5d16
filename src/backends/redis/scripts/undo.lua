-- KEYS: lock, index
-- ARGV: tombstone, its life (ms), and the lock id if the index is hashed
-- 1, or 2 if the lock was there. From now on an acquire with this id finds the tombstone.
local value = redis.pcall('GET', KEYS[1])
local held = false
if type(value) == 'string' then
  local fine, t = pcall(cjson.decode, value)
  held = fine and type(t) == 'table' and t.lockId == (ARGV[3] or string.sub(KEYS[2], -22))
end
-- First the step that needs no memory: the lock must be deleted even if there is no room for the
-- tombstone.
if held then
  local gone = redis.pcall('DEL', KEYS[1])
  if type(gone) == 'table' then
    return gone
  end
end
local done = redis.pcall('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
if done.err then
  return done
end
return held and 2 or 1
