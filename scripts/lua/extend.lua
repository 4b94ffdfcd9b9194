-- extend.lua: the operator gives lost time back: one hold's deadline is later.
-- KEYS[1..4] see prelude.lua
-- ARGV[1] clock offset  ARGV[2] code  ARGV[3] attempt
-- ARGV[4] id of the run; ids sort by the time of their run  ARGV[5] ms more
-- ARGV[6] Unix ms: a deadline before it was missed for another reason, and stays
-- ARGV[7] Unix ms: what was admitted from then on has lost nothing
-- Clock: Redis TIME plus the offset; it decides nothing here. The run's own times say
-- who has lost time, so that a repeat finds the same ones.
-- Returns {word, row, now}: extended; already (by this run or a later one);
-- missed (before ARGV[6]); after (admitted from ARGV[7] on); moved (no phase in
-- which anyone waits for a payer); not_owner; damaged; unknown.
-- Repeated it says already: a row remembers the last run that extended it.
if not epoch then return {'unknown', '', now} end
mark()
local row, raw = fetch(ARGV[2])
if row == false then return {'damaged', KEYS[2], now} end
if not row or row.attempt ~= ARGV[3] then return {'not_owner', '', now} end
if row.phase == 'new' or row.phase == 'paid' or not row.deadline then return {'moved', raw, now} end
if row.extended and row.extended >= ARGV[4] then return {'already', raw, now} end
if row.admitted_at >= tonumber(ARGV[7]) then return {'after', raw, now} end
if row.deadline < tonumber(ARGV[6]) then return {'missed', raw, now} end
row.deadline, row.hold, row.extended = row.deadline + tonumber(ARGV[5]), row.hold + tonumber(ARGV[5]), ARGV[4]
local look = tonumber(redis.call('ZSCORE', KEYS[3], ARGV[2]) or now)
-- Nobody need look at these before their deadline, also where a look had been put off.
if row.phase == 'held' or (row.phase == 'refused' and row.released) then look = math.max(look, row.deadline) end
return {'extended', save(ARGV[2], row, look), now}
