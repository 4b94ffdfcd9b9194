-- reset.lua: the operator begins the sale anew: no seat is taken, under a new epoch.
-- KEYS[1..4] see prelude.lua   KEYS[5] booking:open   KEYS[6] booking:opens_at
-- KEYS[7] sale:config   KEYS[8] adm:rebuild   KEYS[9] candidates:load
-- KEYS[10] candidates:changed (for both see allowlist.lua)   KEYS[11] adm:total
-- KEYS[12..] adm:level:<L>, every level
-- ARGV[1] clock offset  ARGV[2] Redis TIME in ms from which on nothing is changed
-- ARGV[3] the epoch that ends  ARGV[4] the epoch that begins
-- ARGV[5] how many rows there are, all of which its caller has seen paid
-- ARGV[6..] the levels, as KEYS[12..]
-- Clock: Redis TIME; the offset counts for the lease of a load and in the answer.
-- Returns {word, detail, now}:
--   reset: rows, looks and counters are gone, the new epoch is there, booking is closed
--   open: booking is open, or an opening is scheduled
--   rebuilding: a rebuild has its turn
--   loading: the allowlist is being loaded, or is half loaded
--   rows n: there are n rows, not as many as were seen
--   levels: read sale:config again
--   other epoch: another epoch is there, neither the one nor the other
--   expired; unknown: nothing was changed
-- A paid row is never left, so that as many rows as were seen paid are those very
-- rows: that is counted in one step, without reading them all. UNLINK leaves it to
-- another thread to free them. The late decisions stay: of another epoch, money
-- always goes back, and what was decided is decided.
-- Repeated it finds its own epoch and says reset.
if not epoch then return {'unknown', '', now} end
mark()
if now - tonumber(ARGV[1]) >= tonumber(ARGV[2]) then return {'expired', '', now} end
if epoch == ARGV[4] then return {'reset', '', now} end
if epoch ~= ARGV[3] then return {'other', epoch, now} end
if redis.call('EXISTS', KEYS[8]) == 1 then return {'rebuilding', '', now} end
if (tonumber(redis.call('HGET', KEYS[9], 'until') or '') or 0) > now or redis.call('EXISTS', KEYS[10]) == 1 then
  return {'loading', '', now}
end
local switch = redis.call('GET', KEYS[5])
if switch == '1' or (not switch and redis.call('EXISTS', KEYS[6]) == 1) then return {'open', '', now} end
if redis.call('HGET', KEYS[7], 'levels') ~= table.concat(ARGV, ',', 6) then return {'levels', '', now} end
local rows = redis.call('HLEN', KEYS[2])
if rows ~= tonumber(ARGV[5]) then return {'rows', string.format('%.0f', rows), now} end
redis.call('UNLINK', KEYS[2], KEYS[3])
for i = 11, #KEYS do redis.call('SET', KEYS[i], 0) end
redis.call('SET', KEYS[5], '0')
redis.call('DEL', KEYS[6])
redis.call('SET', KEYS[1], ARGV[4])
return {'reset', '', now}
