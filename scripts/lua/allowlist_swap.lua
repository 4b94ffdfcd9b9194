-- allowlist_swap.lua: put the staged list in force, in one step.
-- KEYS[1..14] see allowlist.lua   KEYS[15..] candidate:email:<code> of each e-mail
-- that changes with the list, or none of them when there are too many for one step
-- ARGV[1..4] see allowlist.lua   ARGV[5] how many chunks were staged
-- ARGV[6] 'open' when it may be done while booking is open, or ''
-- ARGV[7..] the codes, as KEYS[15..]
-- Clock: see allowlist.lua
-- Returns {word, detail, now, ...} as allowlist.lua says:
--   swapped: the list is in force, and with it every e-mail, unless none were given:
--   then they are in candidates:changed, and switch.lua opens nothing before they
--   have been written
--   open: booking is open
--   many: booking is open or scheduled, and the e-mails were too many for one step
--   torn: what is staged is not what was sent, or the list in force was changed
-- Of open, many and torn nothing was changed. Repeated it says swapped.
if not mine then return answer('superseded') end
if load.phase == 'swapped' then
  keep()
  return answer('swapped')
end
local given = #KEYS - 14
if load.chunks ~= tonumber(ARGV[5]) or redis.call('SCARD', KEYS[7]) ~= load.rows
  or redis.call('HLEN', KEYS[8]) ~= load.deferred or redis.call('SCARD', KEYS[6]) ~= load.listed
  or (given > 0 and given ~= load.deferred) or redis.call('EXISTS', KEYS[9], KEYS[10]) > 0 then
  return answer('torn')
end
if open and ARGV[6] ~= 'open' then return answer('open') end
if given > 0 then
  -- All at once: a small hash is a list, in which each look-up is a search.
  local flat, emails, pairs_of = redis.call('HGETALL', KEYS[8]), {}, {}
  for i = 1, #flat, 2 do emails[flat[i]] = flat[i + 1] end
  for i = 1, given do
    local email = emails[ARGV[6 + i]]
    if not email then return answer('torn') end
    pairs_of[2 * i - 1], pairs_of[2 * i] = KEYS[14 + i], email
  end
  redis.call('MSET', unpack(pairs_of))
  redis.call('UNLINK', KEYS[8])
elseif load.deferred > 0 then
  if open or (not switch and opens_at) then return answer('many') end
  redis.call('RENAME', KEYS[8], KEYS[10])
end
if load.listed > 0 then redis.call('RENAME', KEYS[6], KEYS[9]) end
if load.rows > 0 then redis.call('RENAME', KEYS[7], KEYS[6]) end
redis.call('INCR', KEYS[12])
load.phase = 'swapped'
keep()
return answer('swapped')
