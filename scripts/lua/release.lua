-- release.lua: give back the seat of an attempt whose time to pay is over.
-- KEYS[1..4] see prelude.lua   KEYS[5] adm:total   KEYS[6..] adm:level:<L>, every level
-- ARGV[1] clock offset  ARGV[2] code  ARGV[3] attempt  ARGV[4..] the levels, as KEYS[6..]
-- Clock: Redis TIME plus the offset.
-- Returns {word, row, now}: freed; too_early; paying; paid; no_payment (that is
-- undo's); not_owner; levels (read sale:config again); damaged; unknown.
-- Repeated it says not_owner.
if not epoch then return {'unknown', '', now} end
mark()
local row, raw = fetch(ARGV[2])
if row == false then return {'damaged', KEYS[2], now} end
if not row or row.attempt ~= ARGV[3] then return {'not_owner', '', now} end
if row.phase == 'paid' or row.phase == 'paying' then return {row.phase, raw, now} end
if not row.payment then return {'no_payment', raw, now} end
if not row.deadline or now < row.deadline then return {'too_early', raw, now} end
return {give_back(ARGV[2], row, 4), raw, now}
