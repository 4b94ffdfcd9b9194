-- switch.lua: the operator opens, closes or schedules booking.
-- KEYS[1..4] see prelude.lua   KEYS[5] booking:open   KEYS[6] booking:opens_at
-- KEYS[7] candidates:changed, see allowlist.lua
-- ARGV[1] clock offset  ARGV[2] Redis TIME in ms from which on nothing is changed
-- ARGV[3] 'open', 'close' or 'schedule'  ARGV[4] Unix ms for 'schedule'
-- Clock: Redis TIME plus the offset.
-- Returns {word, '', now}: switched; expired (nothing was changed: whoever sent it
-- has given up, and someone may have switched since); half_loaded (a load of the
-- allowlist has put its list in force and not yet all of its e-mails: only 'close' is
-- done all the same, of the others nothing); unknown. A set switch wins over the time,
-- so open and close set it and delete the time, and schedule deletes it and sets the
-- time.
-- Repeated it writes the same again.
if not epoch then return {'unknown', '', now} end
mark()
if now - tonumber(ARGV[1]) >= tonumber(ARGV[2]) then return {'expired', '', now} end
if ARGV[3] ~= 'close' and redis.call('EXISTS', KEYS[7]) == 1 then return {'half_loaded', '', now} end
if ARGV[3] == 'schedule' then
  redis.call('SET', KEYS[6], ARGV[4])
  redis.call('DEL', KEYS[5])
else
  redis.call('SET', KEYS[5], ARGV[3] == 'open' and '1' or '0')
  redis.call('DEL', KEYS[6])
end
return {'switched', '', now}
