-- multi_release: lower all locks of one hold to the count told; at 0 delete them and wake their waiters. Harmless when run twice.
-- A lock that is not held any more does not keep the others from being given back.
--
-- KEYS[1..]  lock hash: holder id -> hold count, each of the reentrant kind
-- ARGV[1]  holder id
-- ARGV[2]  hold count to leave behind
-- ARGV[3..]  wake channel, of each lock
--
-- Returns  {holds left, subscribers that heard a wake-up, -1 if it may not be published}; {-1, 0} if one of them was not held
local holder, count = ARGV[1], tonumber(ARGV[2])
local missing, heard = false, 0
for i, lock in ipairs(KEYS) do
    local held = tonumber(redis.call('HGET', lock, holder))
    if not held then
        missing = true
        gone(lock, holder)
    elseif count > 0 then
        if held > count then
            redis.call('HSET', lock, holder, ARGV[2])
        end
    else
        redis.call('DEL', lock)
        local told = tonumber(redis.pcall('PUBLISH', ARGV[2 + i], '0'))
        heard = told and heard + told or -1
    end
end
if missing then
    return {-1, 0}
end
return {count, heard}
