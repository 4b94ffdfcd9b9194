-- begin_pay.lua: announce an execute call; held or payable -> paying.
-- KEYS[1..4] see prelude.lua
-- ARGV[1] clock offset  ARGV[2] code  ARGV[3] attempt  ARGV[4] payment id
-- ARGV[5] owner token  ARGV[6] ms until the end of 'paying', more than the longest call
-- ARGV[7] 'payer' or 'reconciler'; the latter also takes a row 'paying' past its
--         end, and is not bound by the deadline
-- Clock: Redis TIME plus the offset.
-- Returns {word, row, now}: begun; paying; refused; paid; deadline_passed;
-- no_payment; not_owner; damaged; unknown. Repeated with its token it says begun
-- and moves nothing; after its own end_pay, not_owner: a late copy opens nothing.
if not epoch then return {'unknown', '', now} end
mark()
local row, raw = fetch(ARGV[2])
if row == false then return {'damaged', KEYS[2], now} end
if not row or row.attempt ~= ARGV[3] then return {'not_owner', '', now} end
if not row.payment then return {'no_payment', raw, now} end
if row.payment ~= ARGV[4] then return {'not_owner', raw, now} end
if row.ended_by == ARGV[5] then return {'not_owner', raw, now} end
if row.phase == 'paid' or row.phase == 'refused' then return {row.phase, raw, now} end
local reconciler = ARGV[7] == 'reconciler'
if row.phase == 'paying' then
  if row.owner == ARGV[5] then return {'begun', raw, now} end
  if not reconciler or now < row.ends then return {'paying', raw, now} end
  row.taken_over = true
elseif not reconciler and now >= row.deadline then
  return {'deadline_passed', raw, now}
else
  leave_paying(row)
end
row.phase, row.owner, row.ends = 'paying', ARGV[5], now + tonumber(ARGV[6])
return {'begun', save(ARGV[2], row, row.ends), now}
