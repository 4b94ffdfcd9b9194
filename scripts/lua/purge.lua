-- purge.lua: after the event, delete what Redis keeps under candidates' names.
-- KEYS[1..4] see prelude.lua   KEYS[5] booking:open   KEYS[6] booking:opens_at
-- KEYS[7] candidates:load (see allowlist.lua)
-- KEYS[8..] what to delete: candidates:*, candidate:email:<code>, hold:*
-- ARGV[1] clock offset  ARGV[2] Redis TIME in ms from which on nothing is changed
-- ARGV[3] the epoch
-- Clock: Redis TIME; the offset counts for the lease of a load and in the answer.
-- Returns {word, detail, now}:
--   purged n: n of the keys were there, and all are gone
--   open: booking is open, or an opening is scheduled
--   loading: the allowlist is being loaded
--   rows n: n seats are taken in this ledger: they are ended first
--   other epoch: another sale has begun since
--   expired; unknown: nothing was changed
-- UNLINK leaves it to another thread to free them, whatever their size.
-- Safe to repeat.
if not epoch then return {'unknown', '', now} end
mark()
if now - tonumber(ARGV[1]) >= tonumber(ARGV[2]) then return {'expired', '', now} end
if epoch ~= ARGV[3] then return {'other', epoch, now} end
if (tonumber(redis.call('HGET', KEYS[7], 'until') or '') or 0) > now then return {'loading', '', now} end
local switch = redis.call('GET', KEYS[5])
if switch == '1' or (not switch and redis.call('EXISTS', KEYS[6]) == 1) then return {'open', '', now} end
local rows = redis.call('HLEN', KEYS[2])
if rows > 0 then return {'rows', string.format('%.0f', rows), now} end
local n = redis.call('UNLINK', unpack(KEYS, 8))
return {'purged', string.format('%.0f', n), now}
