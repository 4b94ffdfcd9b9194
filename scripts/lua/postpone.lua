-- postpone.lua: the reconciler could not decide; look at the row again later.
-- KEYS[1..4] see prelude.lua
-- ARGV[1] clock offset  ARGV[2] code  ARGV[3] attempt  ARGV[4] phase it was seen in
-- ARGV[5] ms until the next look  ARGV[6] what to count: 'look' (an extension in
-- doubt), 'miss' (no answer), 'unfinished' (the payer had not finished), 'nothing'
-- Clock: Redis TIME plus the offset. The time to pay is never extended.
-- Where the row of a look is missing or cannot be read, by this script or by the
-- caller (who then gives no attempt), the look alone is put off, whatever the
-- answer: nobody can decide anything, and it must not crowd out the others.
-- Returns {word, row, now}: postponed; moved (another phase by now); not_owner;
-- damaged; unknown.
if not epoch then return {'unknown', '', now} end
mark()
local row, raw = fetch(ARGV[2])
if not row or ARGV[3] == '' then
  redis.call('ZADD', KEYS[3], 'XX', string.format('%.0f', now + tonumber(ARGV[5])), ARGV[2])
end
if row == false then return {'damaged', KEYS[2], now} end
if not row or row.attempt ~= ARGV[3] then return {'not_owner', '', now} end
if row.phase ~= ARGV[4] then return {'moved', raw, now} end
if ARGV[6] == 'look' then
  row.looks, row.misses = (row.looks or 0) + 1, nil
elseif ARGV[6] == 'miss' then
  row.misses = (row.misses or 0) + 1
elseif ARGV[6] == 'unfinished' then
  row.unfinished_at, row.misses = row.unfinished_at or now, nil
end
return {'postponed', save(ARGV[2], row, now + tonumber(ARGV[5])), now}
