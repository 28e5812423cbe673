package peer;

import org.redisson.Redisson;
import org.redisson.RedissonMultiLock;
import org.redisson.RedissonRedLock;
import org.redisson.api.*;
import org.redisson.config.BaseConfig;
import org.redisson.config.Config;

import java.io.*;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;

/**
 * A real Redisson client that takes orders as JSON lines on stdin and answers as JSON lines on stdout.
 * An order for a thread is queued on that thread; its answer comes when the call has ended.
 */
public final class Peer {
    private static final TimeUnit MS = TimeUnit.MILLISECONDS;

    private static final class Worker {
        volatile Thread thread;
        final ExecutorService ex = Executors.newSingleThreadExecutor(r -> {
            Thread t = new Thread(r);
            t.setDaemon(true);
            thread = t;
            return t;
        });

        Worker() {
            try {
                ex.submit(() -> null).get();
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
        }
    }

    private final PrintStream out;
    private final Map<Long, Worker> workers = new ConcurrentHashMap<>();
    private final Map<String, RLock> locks = new ConcurrentHashMap<>();
    /** By the name that orders call them by; the one without a name is "". */
    private final Map<String, RedissonClient> clients = new ConcurrentHashMap<>();
    private String address;

    private Peer(PrintStream out, String address) {
        this.out = out;
        this.address = address;
    }

    public static void main(String[] args) throws Exception {
        String address = "redis://127.0.0.1:6379";
        for (String a : args) {
            if (a.startsWith("--redis=")) {
                address = a.substring(8);
            }
        }
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        Peer p = new Peer(out, address);
        p.answer(Map.of("ready", true));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null;) {
            if (!line.isBlank()) {
                p.order(line);
            }
        }
        System.exit(0);
    }

    private synchronized void answer(Map<String, ?> m) {
        out.println(Json.write(m));
    }

    private void done(Object id, Object value) {
        Map<String, Object> m = new LinkedHashMap<>();
        m.put("id", id);
        m.put("ok", true);
        m.put("value", value);
        answer(m);
    }

    private void failed(Object id, Throwable e) {
        Throwable c = e instanceof ExecutionException || e instanceof CompletionException ? e.getCause() : e;
        Map<String, Object> m = new LinkedHashMap<>();
        m.put("id", id);
        m.put("ok", false);
        m.put("error", c.getClass().getSimpleName());
        m.put("message", String.valueOf(c.getMessage()));
        answer(m);
    }

    @SuppressWarnings("unchecked")
    private void order(String line) {
        Object id = null;
        try {
            Map<String, Object> m = (Map<String, Object>) Json.parse(line);
            id = m.get("id");
            Object fid = id;
            String op = (String) m.get("op");
            switch (op) {
                case "connect":
                    done(id, connect(m).getId());
                    return;
                case "open":
                    open(m);
                    done(id, null);
                    return;
                case "thread": {
                    Worker w = worker(m);
                    done(id, w.thread.getId());
                    return;
                }
                case "pulse":
                    pulse((Long) m.get("every_ms"));
                    done(id, null);
                    return;
                case "interrupt": {
                    Worker w = worker(m);
                    w.thread.interrupt();
                    done(id, null);
                    return;
                }
                case "exit":
                    done(id, null);
                    if (Boolean.TRUE.equals(m.get("clean"))) {
                        clients.values().forEach(c -> c.shutdown(0, 1, TimeUnit.SECONDS));
                    }
                    Runtime.getRuntime().halt(0);
                    return;
                default: {
                    RLock l = lock((String) m.get("lock"));
                    worker(m).ex.execute(() -> {
                        try {
                            done(fid, call(l, op, (Long) m.get("wait_ms"), (Long) m.get("lease_ms")));
                        } catch (Throwable e) {
                            failed(fid, e);
                        }
                    });
                }
            }
        } catch (Throwable e) {
            failed(id, e);
        }
    }

    /** Says from now on whenever this JVM, or the machine below it, stood still for longer than this. */
    private void pulse(long everyMs) {
        Thread beat = new Thread(() -> {
            while (true) {
                long due = System.nanoTime() + MS.toNanos(everyMs);
                try {
                    Thread.sleep(everyMs);
                } catch (InterruptedException e) {
                    return;
                }
                long late = System.nanoTime() - due;
                if (late > MS.toNanos(everyMs)) {
                    answer(Map.of("late_ns", late));
                }
            }
        });
        beat.setDaemon(true);
        beat.start();
    }

    private RedissonClient connect(Map<String, Object> m) throws ReflectiveOperationException {
        String name = String.valueOf(m.getOrDefault("client", ""));
        if (clients.containsKey(name)) {
            throw new IllegalStateException("connected already");
        }
        Config cfg = new Config();
        cfg.setThreads(4).setNettyThreads(4);
        if (m.get("redis") != null) {
            address = (String) m.get("redis");
        }
        if (m.get("watchdog_ms") != null) {
            cfg.setLockWatchdogTimeout((Long) m.get("watchdog_ms"));
        }
        if (m.get("watchdog_batch") != null) {
            set(cfg, "setLockWatchdogBatchSize", ((Long) m.get("watchdog_batch")).intValue());
        }
        if (m.get("fair_wait_ms") != null) {
            set(cfg, "setFairLockWaitTimeout", m.get("fair_wait_ms"));
        }
        BaseConfig<?> servers;
        if ("cluster".equals(m.get("mode"))) {
            servers = cfg.useClusterServers().addNodeAddress(address).setMasterConnectionMinimumIdleSize(2)
                    .setSlaveConnectionMinimumIdleSize(2).setMasterConnectionPoolSize(32).setSlaveConnectionPoolSize(32);
        } else {
            servers = cfg.useSingleServer().setAddress(address).setConnectionMinimumIdleSize(2).setConnectionPoolSize(32)
                    .setSubscriptionConnectionPoolSize(16);
        }
        commands(servers, m);
        RedissonClient c = Redisson.create(cfg);
        clients.put(name, c);
        return c;
    }

    /** How long a command may take and how often it is sent. The setters of releases differ. */
    private static void commands(BaseConfig<?> servers, Map<String, Object> m) throws ReflectiveOperationException {
        if (m.get("timeout_ms") != null) {
            servers.setTimeout(((Long) m.get("timeout_ms")).intValue());
        }
        if (m.get("connect_timeout_ms") != null) {
            servers.setConnectTimeout(((Long) m.get("connect_timeout_ms")).intValue());
        }
        if (m.get("retry_attempts") != null) {
            servers.setRetryAttempts(((Long) m.get("retry_attempts")).intValue());
        }
        if (m.get("retry_interval_ms") != null) {
            set(servers, "setRetryInterval", ((Long) m.get("retry_interval_ms")).intValue());
        }
        if (m.get("retry_base_ms") != null) {
            set(servers, "setRetryDelay", jitter(m.get("retry_base_ms"), m.get("retry_cap_ms")));
        }
        if (m.get("reconnect_base_ms") != null) {
            set(servers, "setReconnectionDelay", jitter(m.get("reconnect_base_ms"), m.get("reconnect_cap_ms")));
        }
    }

    private static Object jitter(Object baseMs, Object capMs) throws ReflectiveOperationException {
        return Class.forName("org.redisson.config.EqualJitterDelay").getConstructor(Duration.class, Duration.class)
                .newInstance(Duration.ofMillis((Long) baseMs), Duration.ofMillis((Long) capMs));
    }

    private static void set(Object on, String setter, Object value) throws ReflectiveOperationException {
        for (java.lang.reflect.Method method : on.getClass().getMethods()) {
            if (method.getName().equals(setter) && method.getParameterCount() == 1) {
                method.invoke(on, value);
                return;
            }
        }
        throw new NoSuchMethodException(setter + ": this release has none");
    }

    private RedissonClient client(Map<String, Object> m) throws ReflectiveOperationException {
        String name = String.valueOf(m.getOrDefault("client", ""));
        RedissonClient c = clients.get(name);
        return c != null ? c : connect(Map.of("client", name));
    }

    @SuppressWarnings("unchecked")
    private void open(Map<String, Object> m) throws ReflectiveOperationException {
        String alias = (String) m.get("lock");
        String n = (String) m.get("name");
        RedissonClient c = client(m);
        RLock l;
        switch ((String) m.get("kind")) {
            case "reentrant": l = c.getLock(n); break;
            case "fair": l = c.getFairLock(n); break;
            case "read": l = c.getReadWriteLock(n).readLock(); break;
            case "write": l = c.getReadWriteLock(n).writeLock(); break;
            case "fenced": l = c.getFencedLock(n); break;
            case "spin": l = c.getSpinLock(n); break;
            case "multi": l = new RedissonMultiLock(parts((List<String>) m.get("of"))); break;
            case "red": l = new RedissonRedLock(parts((List<String>) m.get("of"))); break;
            default: throw new IllegalArgumentException("kind " + m.get("kind"));
        }
        locks.put(alias, l);
    }

    private RLock[] parts(List<String> of) {
        return of.stream().map(this::lock).toArray(RLock[]::new);
    }

    private RLock lock(String alias) {
        RLock l = alias == null ? null : locks.get(alias);
        if (l == null) {
            throw new IllegalArgumentException("no such lock: " + alias);
        }
        return l;
    }

    private Worker worker(Map<String, Object> m) {
        Object n = m.get("thread");
        return workers.computeIfAbsent(n == null ? 1L : (Long) n, k -> new Worker());
    }

    private static Object call(RLock l, String op, Long wait, Long lease) throws Exception {
        long tid = Thread.currentThread().getId();
        switch (op) {
            case "lock":
                if (lease == null) {
                    l.lock();
                } else {
                    l.lock(lease, MS);
                }
                return null;
            case "lockInterruptibly":
                if (lease == null) {
                    l.lockInterruptibly();
                } else {
                    l.lockInterruptibly(lease, MS);
                }
                return null;
            case "tryLock":
                if (wait == null && lease == null) {
                    return l.tryLock();
                }
                return l.tryLock(wait == null ? 0 : wait, lease == null ? -1 : lease, MS);
            case "tryLockAsync":
                return l.tryLockAsync(wait == null ? 0 : wait, lease == null ? -1 : lease, MS, tid).get();
            case "unlock":
                l.unlock();
                return null;
            case "forceUnlock": return l.forceUnlock();
            case "isLocked": return l.isLocked();
            case "holdCount": return l.getHoldCount();
            case "heldByMe": return l.isHeldByCurrentThread();
            case "remainTTL": return l.remainTimeToLive();
            case "delete": return ((RObject) l).delete();
            case "getToken": return ((RFencedLock) l).getToken();
            case "lockAndGetToken": return ((RFencedLock) l).lockAndGetToken();
            case "tryLockAndGetToken":
                if (wait == null && lease == null) {
                    return ((RFencedLock) l).tryLockAndGetToken();
                }
                return ((RFencedLock) l).tryLockAndGetToken(wait == null ? 0 : wait, lease == null ? -1 : lease, MS);
            default: throw new IllegalArgumentException("op " + op);
        }
    }
}
