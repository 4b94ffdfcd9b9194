-- end_pay.lua: say how an execute call ended, when it did not pay.
-- KEYS[1..4] see prelude.lua
-- ARGV[1] clock offset  ARGV[2] code  ARGV[3] attempt  ARGV[4] owner token
-- ARGV[5] 'refused' after a definite refusal; 'held' when execute was not sent or
--         the payer had not finished
-- Clock: Redis TIME plus the offset.
-- Returns {word, row, now}: ended; taken_over (a 'paying' that the reconciler took
-- over never ends as held); paid; not_owner; damaged; unknown. Repeated with its
-- token it finds the phase it left and says ended.
if not epoch then return {'unknown', '', now} end
mark()
local row, raw = fetch(ARGV[2])
if row == false then return {'damaged', KEYS[2], now} end
if not row or row.attempt ~= ARGV[3] then return {'not_owner', '', now} end
if row.phase == 'paid' then return {'paid', raw, now} end
if row.phase == ARGV[5] and row.ended_by == ARGV[4] then return {'ended', raw, now} end
if row.phase ~= 'paying' or row.owner ~= ARGV[4] then return {'not_owner', raw, now} end
if ARGV[5] == 'held' and row.taken_over then return {'taken_over', raw, now} end
leave_paying(row)
row.phase, row.ended_by = ARGV[5], ARGV[4]
local look = row.deadline
if row.phase == 'refused' then
  look, row.doubt = math.min(look, now + LOOK_REFUSED), nil
end
return {'ended', save(ARGV[2], row, look), now}
