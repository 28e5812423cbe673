-- pass: a fragment, joined behind `take`. Never run by itself.
-- Gives the lock back and takes it for another holder. Creates no lock. Returns what `take` returns; {-1, 0} if neither holds it.
local function pass(lock, from, to, lease_ms)
    if redis.call('HEXISTS', lock, from) == 1 then
        -- A delete goes first: it is allowed when memory is full, and once something was written the rest is too.
        redis.call('DEL', lock)
    elseif redis.call('HEXISTS', lock, to) == 0 then
        return gone(lock, from)
    end
    return take(lock, to, '1', lease_ms)
end
