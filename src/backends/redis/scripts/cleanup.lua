-- KEYS: lock, index
-- ARGV: expiry as it was seen, guard (ms), and the lock id if the index is hashed
-- 1: removed; 0: not the record that was seen, or not dead for long enough; -2: unreadable.
local value = redis.call('GET', KEYS[1])
if not value then
  return 0
end
--@decode
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
expires = tonumber(expires)
if id ~= (ARGV[3] or string.sub(KEYS[2], -22)) or expires ~= tonumber(ARGV[1])
    or now - expires <= tonumber(ARGV[2]) then
  return 0
end
local done = redis.pcall('DEL', KEYS[1])
if type(done) == 'table' then
  return done
end
if redis.call('GET', KEYS[2]) == KEYS[1] then
  redis.call('DEL', KEYS[2])
end
return 1
