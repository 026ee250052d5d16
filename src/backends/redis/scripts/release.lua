-- KEYS: index
-- ARGV: lock id, tolerance
-- {1, value} released; {0, 0} nothing there, {0, 1} it had expired; {2} unreadable value;
-- {6} the lock's name cannot be reached from here (a slot that moves)
local name = redis.call('GET', KEYS[1])
if not name then
  return {0, 0}
end
local value = redis.pcall('GET', name)
if not value then
  return {0, 0}
end
if type(value) == 'table' then
  return {string.find(value.err, '^%-?WRONGTYPE') and 2 or 6}
end
local id, expires, fence = string.match(value,
  '^{"lockId":"([%w_-]+)","expiresAtMs":(%d+),"acquiredAtMs":%d+,"fence":"(%d+)","key":".*"}$')
--@decode
if id ~= ARGV[1] then
  return {0, 0}
end
local time = redis.call('TIME')
if expires + ARGV[2] <= time[1] * 1000 + math.floor(time[2] / 1000) then
  return {0, 1}
end
local done = redis.pcall('DEL', name, KEYS[1])
if type(done) == 'table' then
  return done
end
return {1, value}
