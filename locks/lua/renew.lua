-- renew: keep alive the holds that are still there. Creates nothing and shortens nothing, so it may run twice or late.
--
-- KEYS[1]  guard: a key in the same slot that never exists
-- KEYS[2..]  lock hash: holder id -> hold count
-- ARGV[1]  lease_ms
-- ARGV[2..]  holder id
--
-- Returns  one result a lock: 1 renewed, 0 not held, 2 the key holds something that is no lock, 3 refused for this key
local guard, lease_ms = KEYS[1], tonumber(ARGV[1])
local results = {}
for i = 2, #KEYS do
    local lock, holder = KEYS[i], ARGV[i]
    local held = redis.pcall('HEXISTS', lock, holder)
    if held == 1 then
        if redis.call('PTTL', lock) < lease_ms then
            redis.call('PEXPIRE', lock, ARGV[1])
        end
        results[i - 1] = 1
    else
        -- A node that must not write (a replica, a master short of replicas) refuses this instead of answering "not held".
        redis.call('DEL', guard)
        if held == 0 then
            results[i - 1] = 0
        elseif string.find(held['err'], 'WRONGTYPE', 1, true) then
            results[i - 1] = 2
        else
            results[i - 1] = 3
        end
    end
end
return results
