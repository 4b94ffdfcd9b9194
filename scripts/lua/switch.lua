-- switch.lua: the operator opens, closes or schedules booking.
-- KEYS[1..4] see prelude.lua   KEYS[5] booking:open   KEYS[6] booking:opens_at
-- KEYS[7] candidates:changed, see allowlist.lua   KEYS[8] sale:config
-- ARGV[1] clock offset  ARGV[2] Redis TIME in ms from which on nothing is changed
-- ARGV[3] 'open', 'close' or 'schedule'  ARGV[4] Unix ms for 'schedule'
-- ARGV[5] the epoch that the operator was shown, or nothing from here on: then it is
-- done whatever stands  ARGV[6] '1' if booking was shown open, else '0'
-- ARGV[7] the scheduled opening that was shown, Unix ms, or '0'
-- ARGV[8..] sale:config as it was shown: field, value, field, value, ...
-- Clock: Redis TIME plus the offset.
-- Returns {word, detail, now}: switched; expired (nothing was changed: whoever sent it
-- has given up, and someone may have switched since); half_loaded (a load of the
-- allowlist has put its list in force and not yet all of its e-mails: only 'close' is
-- done all the same, of the others nothing); moved (epoch, switch or sale are not as
-- shown: nothing was changed; detail is 'found' when sale and epoch are, and the switch
-- stands as this would have it); unknown. A set switch wins over the time, so open and
-- close set it and delete the time, and schedule deletes it and sets the time.
-- Repeated it writes the same again, or finds it.
if not epoch then return {'unknown', '', now} end
mark()
if now - tonumber(ARGV[1]) >= tonumber(ARGV[2]) then return {'expired', '', now} end
-- same_sale tells whether sale:config holds what was shown, and nothing else.
local function same_sale()
  if redis.call('HLEN', KEYS[8]) * 2 ~= #ARGV - 7 then return false end
  for i = 8, #ARGV, 2 do
    if redis.call('HGET', KEYS[8], ARGV[i]) ~= ARGV[i + 1] then return false end
  end
  return true
end

if ARGV[5] then
  if epoch ~= ARGV[5] or not same_sale() then return {'moved', '', now} end
  local switch, opens_at = redis.call('GET', KEYS[5]), redis.call('GET', KEYS[6])
  local at = not switch and tonumber(opens_at or '') or 0
  local open = switch == '1' or (at > 0 and now >= at)
  if open ~= (ARGV[6] == '1') or (not open and at ~= tonumber(ARGV[7])) then
    local found = (ARGV[3] == 'open' and switch == '1') or (ARGV[3] == 'schedule' and not switch and opens_at == ARGV[4])
    return {'moved', found and 'found' or '', now}
  end
end
if ARGV[3] ~= 'close' and redis.call('EXISTS', KEYS[7]) == 1 then return {'half_loaded', '', now} end
if ARGV[3] == 'schedule' then
  redis.call('SET', KEYS[6], ARGV[4])
  redis.call('DEL', KEYS[5])
else
  redis.call('SET', KEYS[5], ARGV[3] == 'open' and '1' or '0')
  redis.call('DEL', KEYS[6])
end
return {'switched', '', now}
