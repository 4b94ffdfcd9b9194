-- allowlist_stage.lua: the next chunk of a list, staged beside the one in force.
-- KEYS[1..14] see allowlist.lua   KEYS[15..] candidate:email:<code> of each row
-- ARGV[1..4] see allowlist.lua   ARGV[5] number of the chunk, from 1
-- ARGV[6..] for each row: code, e-mail
-- Clock: see allowlist.lua
-- Returns {word, detail, now, ...} as allowlist.lua says:
--   staged: this chunk is counted; a repeat of the last one counts nothing
--   differs n: row n of the chunk has a code that came before with another e-mail;
--   nothing of the chunk was staged
--   torn: an earlier chunk is not there: a failover has lost it
-- A code that nobody admits by or mails to, since it is not on the list and has neither
-- an e-mail nor a seat, gets its own at once, so that it has one from the moment the
-- list is in force. Any other e-mail changes with the list.
if not mine or load.phase ~= 'staging' then return answer('superseded') end
local n = tonumber(ARGV[5])
if load.chunks == n and n > 0 then
  keep()
  return answer('staged')
end
if load.chunks ~= n - 1 or redis.call('SCARD', KEYS[7]) ~= load.rows then return answer('torn') end

local rows = #KEYS - 14
local codes = {}
for i = 1, rows do codes[i] = ARGV[4 + 2 * i] end
local before = redis.call('SMISMEMBER', KEYS[7], unpack(codes))
local listed = redis.call('SMISMEMBER', KEYS[6], unpack(codes))
local on_file = redis.call('MGET', unpack(KEYS, 15, 14 + rows))
local seats = redis.call('HMGET', KEYS[2], unpack(codes))
local mine_now, fresh_codes, own, later = {}, {}, {}, {}
local added, changed, unchanged = 0, 0, 0
for i = 1, rows do
  local code, email = codes[i], ARGV[5 + 2 * i]
  local earlier = mine_now[code]
  if not earlier and before[i] == 1 then earlier = redis.call('HGET', KEYS[8], code) or on_file[i] end
  if earlier then
    if earlier ~= email then return answer('differs', i) end
  else
    mine_now[code] = email
    fresh_codes[#fresh_codes + 1] = code
    if listed[i] == 1 and on_file[i] == email then
      unchanged = unchanged + 1
    elseif listed[i] == 1 then
      changed = changed + 1
    else
      added = added + 1
    end
    if on_file[i] ~= email then
      local list, key = later, code
      if listed[i] == 0 and not on_file[i] and not seats[i] then list, key = own, KEYS[14 + i] end
      list[#list + 1] = key
      list[#list + 1] = email
    end
  end
end
if #fresh_codes > 0 then redis.call('SADD', KEYS[7], unpack(fresh_codes)) end
if #own > 0 then redis.call('MSET', unpack(own)) end
if #later > 0 then redis.call('HSET', KEYS[8], unpack(later)) end
load.chunks, load.rows, load.deferred = n, load.rows + #fresh_codes, load.deferred + #later / 2
load.added, load.changed, load.unchanged = load.added + added, load.changed + changed, load.unchanged + unchanged
keep()
return answer('staged')
