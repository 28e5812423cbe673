-- free: a fragment, joined in front of all others of reentrant_acquire. Never run by itself.
-- Takes a lock that is free and answers 1. Most acquires end here, before the functions that follow are made: making three of them and
-- answering a list costs a server as much as a fifth of the acquire.

-- What refused to limit the lock, if it was taken and could not be.
local unlimited
if ARGV[2] == '1' and redis.call('PTTL', KEYS[1]) == -2 then
    redis.call('HSET', KEYS[1], ARGV[1], '1')
    unlimited = redis.pcall('PEXPIRE', KEYS[1], ARGV[3])
    if unlimited == 1 then
        return 1
    end
end
