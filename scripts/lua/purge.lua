-- purge.lua: after the event, delete what Redis keeps under candidates' names.
-- KEYS[1..4] see prelude.lua   KEYS[5] booking:open   KEYS[6] booking:opens_at
-- KEYS[7] candidates:load   KEYS[8] candidates:changed (for both see allowlist.lua)
-- KEYS[9] adm:rebuild
-- KEYS[10..] what to delete: candidates:*, candidate:email:<code>, hold:*
-- ARGV[1] clock offset  ARGV[2] Redis TIME in ms from which on nothing is changed
-- ARGV[3] the epoch
-- ARGV[4] the token of the turn to load the allowlist, which the purge has taken, so
-- that no list is put in force while its e-mails go  ARGV[5] its lease in ms, which
-- every step renews
-- Clock: Redis TIME; the offset counts for the lease and in the answer.
-- Returns {word, detail, now}:
--   purged n: n of the keys were there, and all are gone
--   open: booking is open, or an opening is scheduled
--   loading: the turn is not this purge's any more, or a load has changed half of the
--   e-mails of the list in force
--   rebuilding: a rebuild has its turn, or did not come to its end
--   rows n: n seats are taken in this ledger: they are ended first
--   other epoch: another sale has begun since
--   expired; unknown: nothing was changed
-- UNLINK leaves it to another thread to free them, whatever their size.
-- Safe to repeat.
if not epoch then return {'unknown', '', now} end
mark()
if now - tonumber(ARGV[1]) >= tonumber(ARGV[2]) then return {'expired', '', now} end
if epoch ~= ARGV[3] then return {'other', epoch, now} end
if redis.call('HGET', KEYS[7], 'token') ~= ARGV[4] or redis.call('EXISTS', KEYS[8]) == 1 then return {'loading', '', now} end
if redis.call('EXISTS', KEYS[9]) == 1 then return {'rebuilding', '', now} end
local switch = redis.call('GET', KEYS[5])
if switch == '1' or (not switch and redis.call('EXISTS', KEYS[6]) == 1) then return {'open', '', now} end
local rows = redis.call('HLEN', KEYS[2])
if rows > 0 then return {'rows', string.format('%.0f', rows), now} end
local n = redis.call('UNLINK', unpack(KEYS, 10))
redis.call('HSET', KEYS[7], 'until', string.format('%.0f', now + tonumber(ARGV[5])))
return {'purged', string.format('%.0f', n), now}
