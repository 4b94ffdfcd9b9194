-- apply_sale.lua: put a sale into force; counters are counted from the rows.
-- KEYS[1..4] see prelude.lua   KEYS[5] sale:config   KEYS[6] adm:total
-- KEYS[7] adm:rebuild   KEYS[8..] adm:level:<L>: first every level of the new sale,
-- then every level of the old one that it drops
-- ARGV[1] clock offset  ARGV[2] Redis TIME in ms from which on nothing is changed
-- ARGV[3] epoch to write if there is none, or ''
-- ARGV[4] 'apply', or 'check' to change nothing
-- ARGV[5] token of the rebuild that this is the last step of, or ''
-- ARGV[6] global cap  ARGV[7] currency  ARGV[8] hold in ms  ARGV[9] sale's name
-- ARGV[10] sale's title, or ''
-- ARGV[11] number of levels, then for each of them: id, cap, fee, name
-- then nothing, or the epoch that the operator was shown and sale:config as it was
-- shown: field, value, field, value, ...
-- Clock: Redis TIME plus the offset.
-- Returns {word, detail, now, epoch, total, id, admitted, id, admitted, ...}:
--   applied; fits (checked only)
--   below '' or a level: a cap would be below what is admitted
--   removed level: a level that has seats would go
--   moved: epoch or sale:config are not as shown; detail is 'found' when this sale is
--   in force under that epoch
--   levels level: a dropped level is not among the keys: read sale:config again
--   damaged code: a row cannot be read
--   rebuilding: a rebuild has begun, so the rows are not all there, and this is not
--   its last step; superseded: another rebuild has its turn, or none
--   expired: whoever sent it has given up; nothing was changed
--   unknown: there is no epoch and none was given
-- The epoch is written last. Repeated it writes the same again: the rebuild's token
-- stays until restore.lua forgets it, or a sale is applied without one.
if not epoch and ARGV[3] == '' then return {'unknown', '', now} end
mark()
if now - tonumber(ARGV[1]) >= tonumber(ARGV[2]) then return {'expired', '', now} end
local turn, token = redis.call('GET', KEYS[7]), ARGV[5]
if token ~= '' then
  if turn ~= token then return {'superseded', '', now} end
elseif turn and not epoch then
  return {'rebuilding', '', now}
end
local n = tonumber(ARGV[11])
local admitted, total, wanted = {}, 0, {}
for i = 0, n - 1 do
  wanted[ARGV[12 + 4 * i]] = true
  admitted[ARGV[12 + 4 * i]] = 0
end
local rows = redis.call('HGETALL', KEYS[2])
for i = 1, #rows, 2 do
  local ok, row = pcall(cjson.decode, rows[i + 1])
  if not ok or type(row) ~= 'table' or type(row.level) ~= 'string' then return {'damaged', rows[i], now} end
  if not wanted[row.level] then return {'removed', row.level, now} end
  admitted[row.level] = admitted[row.level] + 1
  total = total + 1
end
local figures = {'', '', now, epoch or ARGV[3], total}
for i = 0, n - 1 do
  local id = ARGV[12 + 4 * i]
  figures[#figures + 1] = id
  figures[#figures + 1] = admitted[id]
  if admitted[id] > tonumber(ARGV[13 + 4 * i]) then figures[1], figures[2] = 'below', id end
end
if figures[1] == 'below' then return figures end
if total > tonumber(ARGV[6]) then
  figures[1] = 'below'
  return figures
end
local ids, config = {}, {'name', ARGV[9], 'currency', ARGV[7], 'cap', ARGV[6], 'hold_ms', ARGV[8]}
for i = 0, n - 1 do
  local id = ARGV[12 + 4 * i]
  ids[#ids + 1] = id
  for j, field in ipairs({'cap:', 'fee:', 'name:'}) do
    config[#config + 1] = field .. id
    config[#config + 1] = ARGV[12 + 4 * i + j]
  end
end
if ARGV[10] ~= '' then
  config[#config + 1] = 'title'
  config[#config + 1] = ARGV[10]
end
config[#config + 1] = 'levels'
config[#config + 1] = table.concat(ids, ',')

-- holds tells whether sale:config holds list[first..], and nothing else.
local function holds(list, first)
  if redis.call('HLEN', KEYS[5]) * 2 ~= #list - first + 1 then return false end
  for i = first, #list, 2 do
    if redis.call('HGET', KEYS[5], list[i]) ~= list[i + 1] then return false end
  end
  return true
end

local shown = ARGV[12 + 4 * n]
if shown and (epoch ~= shown or not holds(ARGV, 13 + 4 * n)) then
  figures[1], figures[2] = 'moved', epoch == shown and holds(config, 1) and 'found' or ''
  return figures
end
local old = redis.call('HGET', KEYS[5], 'levels')
if old then
  local dropped = 0
  for id in string.gmatch(old, '[^,]+') do
    if not wanted[id] then dropped = dropped + 1 end
  end
  if dropped ~= #KEYS - 7 - n then
    figures[1] = 'levels'
    return figures
  end
end
if ARGV[4] == 'check' then
  figures[1] = 'fits'
  return figures
end
for i = 0, n - 1 do
  local id = ARGV[12 + 4 * i]
  redis.call('SET', KEYS[8 + i], admitted[id])
end
for i = 8 + n, #KEYS do redis.call('DEL', KEYS[i]) end
redis.call('SET', KEYS[6], total)
redis.call('DEL', KEYS[5])
redis.call('HSET', KEYS[5], unpack(config))
if token == '' then redis.call('DEL', KEYS[7]) end
if not epoch then redis.call('SET', KEYS[1], ARGV[3]) end
figures[1] = 'applied'
return figures
