-- force_release: take the lock away from whoever holds it and wake a waiter.
--
-- KEYS[1]  lock hash: holder id -> hold count
-- ARGV[1]  wake channel of a lock with one holder
-- ARGV[2]  wake channel of a read-write lock
--
-- Returns  {type of the key found, subscribers that heard the wake-up, -1 if it may not be published}
local lock, channel, read_write_channel = KEYS[1], ARGV[1], ARGV[2]
local kind = redis.call('TYPE', lock)['ok']
if kind ~= 'hash' then
    return {kind, 0}
end
local mode = redis.call('HGET', lock, 'mode')
redis.call('DEL', lock)
local heard
if mode then
    -- Behind readers only writers wait: one a process is enough, and Redisson keeps `0`, but not `1`, for one about to sleep.
    heard = redis.pcall('PUBLISH', read_write_channel, mode == 'read' and '0' or '1')
else
    heard = redis.pcall('PUBLISH', channel, '0')
end
return {kind, tonumber(heard) or -1}
