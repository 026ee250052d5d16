  -- Sets id and expires from value. Our own layout has every field at a fixed place as long as
  -- times have 13 digits (until 2286); anything else is decoded. Only the expiry must be readable:
  -- it decides whether the lock is live. An id that is no text belongs to no client.
  local id, expires
  if #value > 126 then
    local a, b, c, d, e, f, g, h, i = struct.unpack('c11c22c16c13c16c13c10c15c9', value)
    if a == '{"lockId":"' and c == '","expiresAtMs":' and e == ',"acquiredAtMs":'
        and g == ',"fence":"' and i == '","key":"' and string.sub(value, -2) == '"}'
        and not string.find(d, '%D') then
      id, expires = b, d
    end
  end
  if not expires then
    local fine, t = pcall(cjson.decode, value)
    if not fine or type(t) ~= 'table' or type(t.expiresAtMs) ~= 'number'
        or not (math.abs(t.expiresAtMs) <= 9007199254740991) then -- nor NaN
      return -2
    end
    -- A fraction is rounded up, as in record.c: no comparison with whole milliseconds changes.
    id, expires = t.lockId, math.ceil(t.expiresAtMs)
  end
