-- Append a batch of events to a session's log: all of them or none (RELIABILITY 3). Redis 6.2 and newer, Valkey.
--   KEYS  1 hash: e epoch, q seq, r run_id of the server, f:<run> "<fence> <time>"   2 stream
--   ARGV  1 epoch to use if a new one begins   2 "1": begin a new one   3 greatest number of events   4 expiry, s
--         5 run id or ""   6 fence or ""   7 channel   8... payloads
-- Returns {1, epoch, first seq, last seq, 1 if the epoch is new}, or {0, the greater fence the run has}.
-- The first XADD fails or nothing does (out of memory): the hash is written after it, so the log never claims what
-- it does not hold.

local server = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
local run, fence = ARGV[5], tonumber(ARGV[6])
local head = redis.call('HMGET', KEYS[1], 'e', 'q', 'r', 'f:' .. run)
local raised = false
if run ~= '' and fence then
  local known = head[4] and tonumber(string.match(head[4], '^%d+'))
  if known and known > fence then return {0, known} end
  raised = not known or fence > known
end

local epoch, seq, is_new = head[1], tonumber(head[2]), 0
local function begin()
  redis.call('DEL', KEYS[2])
  epoch, seq, is_new = ARGV[1], 0, 1
end
if ARGV[2] == '1' or not epoch or not seq or head[3] ~= server then begin() end

local first = seq + 1
for i = 8, #ARGV do
  local answer = redis.pcall('XADD', KEYS[2], string.format('%.0f-0', seq + 1), 'p', ARGV[i])
  if type(answer) == 'table' and answer.err then
    -- an entry above the counter: the stream is not what we wrote
    if i > 8 or is_new == 1 or not string.find(answer.err, 'smaller', 1, true) then return answer end
    begin()
    first = 1
    redis.call('XADD', KEYS[2], '1-0', 'p', ARGV[i])
  end
  seq = seq + 1
end
redis.call('XTRIM', KEYS[2], 'MAXLEN', ARGV[3])
if is_new == 1 then
  redis.call('HSET', KEYS[1], 'e', epoch, 'q', string.format('%.0f', seq), 'r', server)
else
  redis.call('HSET', KEYS[1], 'q', string.format('%.0f', seq))
end

if raised then
  local now = tonumber(redis.call('TIME')[1])
  redis.call('HSET', KEYS[1], 'f:' .. run, string.format('%.0f %.0f', fence, now))
  if redis.call('HLEN', KEYS[1]) > 256 then -- a log that is used for months: fences of long ended runs go
    local all = redis.call('HGETALL', KEYS[1])
    for i = 1, #all, 2 do
      local at = string.sub(all[i], 1, 2) == 'f:' and tonumber(string.match(all[i + 1], ' (%d+)$'))
      if at and now - at > tonumber(ARGV[4]) then redis.call('HDEL', KEYS[1], all[i]) end
    end
  end
end
if is_new == 1 or redis.call('TTL', KEYS[1]) < tonumber(ARGV[4]) * 0.999 then -- about once a minute of a day
  redis.call('EXPIRE', KEYS[1], ARGV[4])
  redis.call('EXPIRE', KEYS[2], ARGV[4])
end
redis.call('PUBLISH', ARGV[7], epoch .. ' ' .. string.format('%.0f', first) .. '\n' .. table.concat(ARGV, '\n', 8))
return {1, epoch, first, seq, is_new}
