-- queued.lua: the attempt's record is known to be queued or stored; payable -> held.
-- KEYS[1..4] see prelude.lua
-- ARGV[1] clock offset  ARGV[2] code  ARGV[3] attempt
-- Clock: Redis TIME plus the offset.
-- Returns {word, row, now}: queued; no_payment; not_owner; damaged; unknown.
-- A row already past 'payable' is left as it is and answered queued.
if not epoch then return {'unknown', '', now} end
mark()
local row, raw = fetch(ARGV[2])
if row == false then return {'damaged', KEYS[2], now} end
if not row or row.attempt ~= ARGV[3] then return {'not_owner', '', now} end
if not row.payment then return {'no_payment', raw, now} end
if row.phase ~= 'payable' then return {'queued', raw, now} end
row.phase = 'held'
return {'queued', save(ARGV[2], row, row.deadline), now}
