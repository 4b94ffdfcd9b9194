-- published.lua: a claimed status.json has been put where people read it.
-- KEYS[1..4] see prelude.lua   KEYS[5] status:published
-- ARGV[1] clock offset  ARGV[2] version  ARGV[3] fingerprint
-- Clock: none needed.
-- Returns {word, '', now}: published; older (a newer version is there already).
-- Repeated it writes the same again.
mark()
local there = tonumber(redis.call('HGET', KEYS[5], 'version') or '') or 0
if there > tonumber(ARGV[2]) then return {'older', '', now} end
redis.call('HSET', KEYS[5], 'version', ARGV[2], 'fingerprint', ARGV[3])
return {'published', '', now}
