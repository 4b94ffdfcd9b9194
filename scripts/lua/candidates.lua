-- candidates.lua: add to the allowlist, or change the e-mail of who is on it.
-- KEYS[1..4] see prelude.lua   KEYS[5] candidates:valid
-- KEYS[6..] candidate:email:<code>, for each code
-- ARGV[1] clock offset  ARGV[2] Redis TIME in ms from which on nothing is changed
-- ARGV[3..] for each code: code, e-mail
-- Clock: Redis TIME; the offset is in the answer alone.
-- Returns {word, '', now}: added; expired (nothing was changed); unknown.
-- Repeated it writes the same again.
if not epoch then return {'unknown', '', now} end
mark()
if now - tonumber(ARGV[1]) >= tonumber(ARGV[2]) then return {'expired', '', now} end
for i = 0, #KEYS - 6 do
  redis.call('SADD', KEYS[5], ARGV[3 + 2 * i])
  redis.call('SET', KEYS[6 + i], ARGV[4 + 2 * i])
end
return {'added', '', now}
