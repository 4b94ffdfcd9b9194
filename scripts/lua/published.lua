-- published.lua: a claimed status.json has been put where people read it.
-- KEYS[1..4] see prelude.lua   KEYS[5] status:published
-- ARGV[1] clock offset  ARGV[2] version  ARGV[3] fingerprint
-- Clock: Redis TIME plus the offset, for the answer alone.
-- Returns {word, '', now}: published; older (a newer version is there already);
-- unknown.
-- Repeated it writes the same again.
if not epoch then return {'unknown', '', now} end
mark()
local there = tonumber(redis.call('HGET', KEYS[5], 'version') or '') or 0
if there > tonumber(ARGV[2]) then return {'older', '', now} end
redis.call('HSET', KEYS[5], 'version', ARGV[2], 'fingerprint', ARGV[3])
return {'published', '', now}
