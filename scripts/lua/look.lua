-- look.lua: one candidate's row and the ledger's clock.
-- KEYS[1..4] see prelude.lua
-- ARGV[1] clock offset  ARGV[2] code
-- Clock: Redis TIME plus the offset.
-- Returns {word, row, now}: row; none; unknown. It only reads: nothing outside
-- Redis may rest on its answer.
if not epoch then return {'unknown', '', now} end
local raw = redis.call('HGET', KEYS[2], ARGV[2])
if not raw then return {'none', '', now} end
return {'row', raw, now}
