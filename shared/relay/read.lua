-- What a session's log holds after a cursor, or that it cannot be told (RELIABILITY 3, "Snapshot instead of replay").
--   KEYS  1 hash   2 stream     ARGV  1 epoch   2 last seq   3 most events   4 most bytes
-- Returns the payloads of last+1 up to the head, without a hole; nil when a snapshot is needed.

local head = redis.call('HMGET', KEYS[1], 'e', 'q', 'r')
if not head[1] or head[1] ~= ARGV[1] then return nil end
if head[3] ~= string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') then return nil end
local seq, last = tonumber(head[2]), tonumber(ARGV[2])
if not seq or last > seq or seq - last > tonumber(ARGV[3]) then return nil end

local payloads, bytes, most_bytes = {}, 0, tonumber(ARGV[4])
while last < seq do
  local page = redis.call('XRANGE', KEYS[2], string.format('%.0f-0', last + 1), '+', 'COUNT', 200)
  if #page == 0 then return nil end
  for _, entry in ipairs(page) do
    last = last + 1
    if entry[1] ~= string.format('%.0f-0', last) or last > seq then return nil end -- trimmed, or not ours
    local payload = entry[2][2]
    bytes = bytes + #payload
    if bytes > most_bytes then return nil end
    payloads[#payloads + 1] = payload
  end
end
return payloads
