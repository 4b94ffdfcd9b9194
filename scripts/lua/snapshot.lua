-- snapshot.lua: the figures of status.json and the right to publish them.
-- KEYS[1..4] see prelude.lua   KEYS[5] sale:config   KEYS[6] booking:open
-- KEYS[7] booking:opens_at   KEYS[8] adm:total
-- KEYS[9] status:version   KEYS[10] status:published   KEYS[11] status:throttle
-- KEYS[12..] adm:level:<L>, every level
-- ARGV[1] clock offset  ARGV[2] throttle in ms
-- ARGV[3] 'claim', or 'read' to look without claiming  ARGV[4..] the levels, as KEYS[12..]
-- Clock: Redis TIME plus the offset.
-- Returns {word, version, now, open (1 or 0), opens_at (or 0), why (''|'sold_out'|'not_open'),
--   cap, total or -1, fingerprint, then for each level: id, name, cap, admitted or -1}:
--   publish: the figures differ from those published, or a version claimed since was
--   never confirmed, and this caller may publish them; it confirms with published.lua, or someone else may after the throttle
--   current: nothing to publish now; levels: read sale:config again; unknown
-- Version only grows, also over an emptied Redis: it is never below the clock.
if not epoch then return {'unknown', 0, now} end
local config = redis.call('HMGET', KEYS[5], 'cap', 'levels')
local cap, ids = tonumber(config[1] or ''), config[2]
if not cap or not ids or ids ~= table.concat(ARGV, ',', 4) then return {'levels', 0, now} end

local total = count(KEYS[8])
local figures, transitions, free = {}, {}, false
for i = 4, #ARGV do
  local level = redis.call('HMGET', KEYS[5], 'cap:' .. ARGV[i], 'name:' .. ARGV[i])
  local level_cap = tonumber(level[1] or '') or 0
  local n = count(KEYS[8 + i])
  local full = not n or n >= level_cap or not total or total >= cap
  if not full then free = true end
  figures[#figures + 1] = ARGV[i]
  figures[#figures + 1] = level[2] or ''
  figures[#figures + 1] = level_cap
  figures[#figures + 1] = n or -1
  transitions[#transitions + 1] = full and 'f' or '-'
end
local switch = redis.call('GET', KEYS[6])
local at = tonumber(redis.call('GET', KEYS[7]) or '') or 0
local open = switch == '1' or (not switch and at > 0 and now >= at)
if switch then at = 0 end
local why = ''
if not open then why = 'not_open' elseif not free then why = 'sold_out' end
local transition = why .. ':' .. string.format('%.0f', open and 0 or at) .. ':' .. table.concat(transitions)
local fingerprint = redis.sha1hex(epoch .. '|' .. transition .. '|' .. tostring(cap) .. '|'
  .. tostring(total or -1) .. '|' .. table.concat(figures, ','))

local word = 'current'
local version = tonumber(redis.call('GET', KEYS[9]) or '') or 0
if ARGV[3] == 'claim' then
  local published = redis.call('HMGET', KEYS[10], 'fingerprint', 'claimed', 'version')
  local throttled = redis.call('EXISTS', KEYS[11]) == 1
  -- A version that was claimed and never confirmed is lost with its publisher, and
  -- may lie over the page that was published, also when the figures are those again.
  local lost = (tonumber(published[3] or '') or 0) < version and published[2] ~= false
  -- A transition is published at once and once: its latch is the claim itself.
  if (published[1] ~= fingerprint or lost) and (not throttled or published[2] ~= transition) then
    word = 'publish'
    version = math.max(version + 1, now)
    redis.call('SET', KEYS[9], string.format('%.0f', version))
    redis.call('HSET', KEYS[10], 'claimed', transition)
    redis.call('SET', KEYS[11], '1', 'PX', ARGV[2])
  end
end
return {word, version, now, open and 1 or 0, at, why, cap, total or -1, fingerprint, unpack(figures)}
