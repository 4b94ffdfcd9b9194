-- done.lua: a paid seat's record is written or its mail is sent, or a refused
-- attempt's record is ended.
-- KEYS[1..4] see prelude.lua
-- ARGV[1] clock offset  ARGV[2] code  ARGV[3] attempt  ARGV[4] 'record', 'mail' or 'released'
-- Clock: Redis TIME plus the offset.
-- Returns {word, row, now}: done; moved (not in the phase that this belongs to);
-- not_owner; damaged; unknown. When a paid seat's both are done nobody need look at
-- the row again; a refused one is looked at at its deadline. Repeated it says done.
if not epoch then return {'unknown', '', now} end
mark()
local row, raw = fetch(ARGV[2])
if row == false then return {'damaged', KEYS[2], now} end
if not row or row.attempt ~= ARGV[3] then return {'not_owner', '', now} end
if ARGV[4] == 'released' then
  if row.phase ~= 'refused' then return {'moved', raw, now} end
  row.released = true
  return {'done', save(ARGV[2], row, row.deadline), now}
end
if row.phase ~= 'paid' then return {'moved', raw, now} end
row[ARGV[4] .. '_done'] = true
local look = nil
if not (row.record_done and row.mail_done) then look = now + LOOK_PAID end
return {'done', save(ARGV[2], row, look), now}
