-- Where a session's log ends: {epoch, seq}; nil without a log, or when it is that of another run of Redis.
--   KEYS  1 hash
local head = redis.call('HMGET', KEYS[1], 'e', 'q', 'r')
if not head[1] or head[3] ~= string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') then return nil end
return {head[1], tonumber(head[2])}
