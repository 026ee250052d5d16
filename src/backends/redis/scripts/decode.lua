  -- Not in the layout that we write: whatever JSON it is, the five fields must be there.
  if not id then
    local fine, t = pcall(cjson.decode, value)
    if not fine or type(t) ~= 'table' or type(t.lockId) ~= 'string' or type(t.key) ~= 'string'
        or type(t.fence) ~= 'string' or not string.find(t.fence, '^%d+$')
        or type(t.acquiredAtMs) ~= 'number' or type(t.expiresAtMs) ~= 'number'
        or not (math.abs(t.expiresAtMs) < 9007199254740992) then
      return {2}
    end
    id, expires, fence = t.lockId, t.expiresAtMs, t.fence
  end
