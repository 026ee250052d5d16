-- KEYS: index
-- The same as read, for the lock that the index names; {now, -6} if the lock cannot be reached from
-- here
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local name = redis.call('GET', KEYS[1])
local value = name and redis.pcall('GET', name)
if not value then
  return {now}
end
if type(value) == 'table' then
  return {now, string.find(value.err, '^%-?WRONGTYPE') and -2 or -6}
end
return {now, #value <= 65536 and value or -2}
