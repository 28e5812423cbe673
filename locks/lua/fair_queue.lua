-- fair_queue: a fragment, joined in front of the scripts that deal with the waiters of a fair lock. Never run by itself.
--
-- As in Redisson the queue is a list of holder ids beside a sorted set of scores: the times, in ms since 1970, at which each waiter
-- counts as dead. The first one's is now + what is left of the lock + its wait, each later one's its predecessor's + its own wait.
-- Waiters of our own kind have their wait in their id (`<client id>:g<wait>:<n>`) and listen before they queue.

local function now_ms()
    local time = redis.call('TIME')
    return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- The client and the wait of a waiter of our own kind; nil for any other.
local function own_kind(id)
    local client, wait = string.match(id, '^(.*):g(%d+):%d+$')
    return client, tonumber(wait)
end

local function score_of(scores, id)
    return tonumber(redis.call('ZSCORE', scores, id))
end

-- Moves every score. One command for many: with a long queue this is most of the work.
local function shift_all(scores, by)
    if by == 0 then
        return
    end
    local waiting = redis.call('ZRANGE', scores, 0, -1, 'WITHSCORES')
    for first = 1, #waiting, 1000 do
        local moved = {}
        for i = first, math.min(first + 998, #waiting - 1), 2 do
            moved[#moved + 1] = string.format('%.0f', waiting[i + 1] + by)
            moved[#moved + 1] = waiting[i]
        end
        redis.call('ZADD', scores, unpack(moved))
    end
end

local function shift(scores, id, by)
    redis.call('ZADD', scores, 'XX', 'INCR', string.format('%.0f', by), id)
end

-- Moves the scores of the waiter at this place and of all behind it.
local function shift_from(queue, scores, place, by)
    if place == 0 then
        shift_all(scores, by)
    elseif by ~= 0 then
        for _, id in ipairs(redis.call('LRANGE', queue, place, -1)) do
            shift(scores, id, by)
        end
    end
end

-- Takes out those for whom `leaves` is true; whoever stands behind one of them moves up by its wait. Returns how many there were.
local function take_out(queue, scores, leaves)
    local taken, up = 0, 0
    for _, id in ipairs(redis.call('LRANGE', queue, 0, -1)) do
        if leaves(id) then
            -- Removals go first: they are allowed when memory is full, and once something was written the rest is too.
            redis.call('LREM', queue, 0, id)
            redis.call('ZREM', scores, id)
            local _, wait = own_kind(id)
            taken, up = taken + 1, up + (wait or 0)
        elseif up > 0 then
            shift(scores, id, -up)
        end
    end
    return taken
end

-- Takes one waiter out of the queue, and says whether it was there.
local function leave(queue, scores, leaver)
    local taken = 0
    if redis.call('LPOS', queue, leaver) then
        taken = take_out(queue, scores, function(id) return id == leaver end)
    end
    return redis.call('ZREM', scores, leaver) + taken > 0
end

-- Takes out the waiters in front whose time has passed, but never the caller, which lives. A client of our own kind that let one
-- of its waiters expire asks for none of them any more, so all of them go.
local function expire_waiters(queue, scores, now, caller)
    while true do
        local head = redis.call('LINDEX', queue, 0)
        local score = head and head ~= caller and score_of(scores, head)
        if not score or score > now then
            return
        end
        redis.call('LPOP', queue)
        redis.call('ZREM', scores, head)
        local silent = own_kind(head)
        if silent and silent ~= own_kind(caller) then
            take_out(queue, scores, function(id) return id ~= caller and own_kind(id) == silent end)
        end
    end
end

-- The score of a living waiter has to reach beyond the end of the lock by its wait. How much it and all behind it have to be moved;
-- not for little, since that costs a write for each.
local function lag(score, wait, free_at)
    return free_at + wait / 2 > score and free_at + wait - score or 0
end

-- Publishes the turn of this waiter. Returns how many subscribers heard it, -1 if it may not be published.
local function wake(channel)
    local heard = tonumber(redis.pcall('PUBLISH', channel, '0')) or -1
    if heard > 0 then
        -- Who listens by pattern hears everything and is no waiter.
        local listening = redis.pcall('PUBSUB', 'NUMSUB', channel)
        heard = tonumber(listening[2]) or heard
    end
    return heard
end

-- Wakes the first waiter of a free lock, unless it is the caller. One of our own kind whom nobody hears is dead, so the next one's
-- turn has come. Returns the head of the queue and how many subscribers heard the message, -1 if it may not be published.
local function wake_head(queue, scores, now, stem, caller)
    local up = 0
    local head, heard, _, wait
    repeat
        if heard then
            redis.call('LPOP', queue)
            redis.call('ZREM', scores, head)
            up = up + wait
        end
        head, heard = redis.call('LINDEX', queue, 0), 0
        if not head or head == caller then
            break
        end
        heard = wake(stem .. head)
        _, wait = own_kind(head)
    until heard ~= 0 or not wait
    local score = up > 0 and head and head ~= caller and wait and score_of(scores, head)
    if score then
        -- It has to have its time, once: being heard is no proof of life, since a frozen process is heard too.
        up = up - lag(score - up, wait, now)
    end
    shift_all(scores, -up)
    return head, heard
end
