-- KEYS: lock, index
-- ARGV: lock id, tombstone, its life (ms)
-- {1, 1 if the lock was there}. From now on an acquire with this id finds the tombstone.
local value = redis.pcall('GET', KEYS[1])
local held = 0
if type(value) == 'string' then
  local id = string.match(value, '^{"lockId":"([%w_-]+)","expiresAtMs":%d+,"acquiredAtMs":')
  if not id then
    local fine, t = pcall(cjson.decode, value)
    if fine and type(t) == 'table' then
      id = t.lockId
    end
  end
  if id == ARGV[1] then
    held = 1
  end
end
local done = redis.pcall('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
if done.err then
  return done
end
if held == 1 then
  redis.call('DEL', KEYS[1])
end
return {1, held}
