-- undo.lua: give back the seat of an attempt that has no payment.
-- KEYS[1..4] see prelude.lua   KEYS[5] adm:total   KEYS[6..] adm:level:<L>, every level
-- ARGV[1] clock offset  ARGV[2] code  ARGV[3] attempt  ARGV[4..] the levels, as KEYS[6..]
-- Clock: Redis TIME plus the offset.
-- Returns {word, row, now}: freed; restored (the seat is the refused attempt's
-- again); has_payment; not_owner; levels (the list lacks the row's level: read
-- sale:config again); damaged; unknown. Repeated it says not_owner.
if not epoch then return {'unknown', '', now} end
mark()
local row, raw = fetch(ARGV[2])
if row == false then return {'damaged', KEYS[2], now} end
if not row or row.attempt ~= ARGV[3] then return {'not_owner', '', now} end
if row.payment or row.phase ~= 'new' then return {'has_payment', raw, now} end
return {give_back(ARGV[2], row, 4), raw, now}
