-- KEYS: index; or lock, with all four arguments
-- ARGV: tolerance, a second one if the value is wanted, the lock id if the index is hashed, and a
-- fourth one if the key is the lock
-- The lock's name (or value): released. 0: nothing there; 1: it had expired; -2: unreadable
-- value; -6: the lock's name cannot be reached from here (a hash slot that moves).
local call = redis.call
local name = ARGV[4] and KEYS[1] or call('GET', KEYS[1])
if not name then
  return 0
end
local value = redis.pcall('GET', name)
if not value then
  return 0
end
if type(value) == 'table' then
  return string.find(value.err, '^%-?WRONGTYPE') and -2 or -6
end
--@decode
if id ~= (ARGV[3] or string.sub(KEYS[1], -22)) then
  return 0
end
local time = call('TIME')
if expires + ARGV[1] <= time[1] * 1000 + math.floor(time[2] / 1000) then
  return 1
end
local done = redis.pcall('DEL', name, KEYS[1])
if type(done) == 'table' then
  return done
end
return ARGV[2] and ARGV[2] ~= '' and value or name
