-- due.lua: the rows that someone must look at now, oldest look first.
-- KEYS[1..4] see prelude.lua
-- ARGV[1] clock offset  ARGV[2] rows to skip  ARGV[3] rows at most
-- Clock: Redis TIME plus the offset.
-- Returns {word, '', now, code, row, code, row, ...}: due; unknown. A code without
-- a row comes with an empty text. It only reads.
if not epoch then return {'unknown', '', now} end
local codes = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', string.format('%.0f', now), 'LIMIT', ARGV[2], ARGV[3])
local answer = {'due', '', now}
for _, code in ipairs(codes) do
  answer[#answer + 1] = code
  answer[#answer + 1] = redis.call('HGET', KEYS[2], code) or ''
end
return answer
