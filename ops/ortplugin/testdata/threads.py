# Uses the plugin from many threads and sessions. The arguments are the library, and
# models of the operator with past: of float32, of float16, and one that drops keys.
import gc
import multiprocessing
import resource
import sys
import threading

import numpy as np
import onnxruntime as ort

B, H, KV, D = 2, 4, 2, 16


def session(library, path, threads=2):
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.register_custom_ops_library(library)
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def feed(seed, kind, new, past, heads=H):
    r = np.random.default_rng(seed)

    def normal(h, n):
        return r.normal(size=(B, h, n, D)).astype(kind)

    field = -r.exponential(size=(B, heads, past + new)).cumsum(-1).astype(np.float32)
    return {
        "query": normal(heads, new), "key": normal(KV, new), "value": normal(KV, new),
        "field": field[:, :, past:], "level": field[:, :, past:], "slope": np.ones(heads, np.float32),
        "past_key": normal(KV, past), "past_value": normal(KV, past),
        "past_level": field[:, :, :past], "past_low": np.minimum(field[:, :, :past], field[:, :, past - 1 : past]),
    }


def check(want, got):
    for a, b in zip(want, got):
        assert a.shape == b.shape and np.array_equal(a, b), "another result"


def side_by_side(library, paths):
    """8 threads on 4 sessions, prefill and decode of several lengths: every result is,
    bit by bit, that of one thread alone."""
    sessions = [session(library, p, n) for p, n in ((paths[0], 1), (paths[0], 3), (paths[1], 2), (paths[2], 4))]
    kinds = [np.float32, np.float32, np.float16, np.float32]
    cases = []
    for s, kind in zip(sessions, kinds):
        for seed, (new, past) in enumerate([(1, 300), (1, 17), (3, 40), (70, 130), (300, 20)]):
            f = feed(seed, kind, new, past)
            cases.append((s, f, s.run(None, f)))
    failures = []

    def work(n):
        try:
            for i in np.random.default_rng(n).permutation(np.repeat(np.arange(len(cases)), 10)):
                s, f, want = cases[i]
                check(want, s.run(None, f))
        except BaseException as e:
            failures.append(repr(e))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures, failures
    return 8 * 10 * len(cases)


def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize() / 2**20


def come_and_go(library, path):
    """30 sessions one after the other."""
    f = feed(1, np.float32, 5, 50)
    want = session(library, path).run(None, f)
    for _ in range(30):
        check(want, session(library, path).run(None, f))


def steady(library, path):
    """Memory after many calls, errors among them, is what it was."""
    s, f = session(library, path), feed(2, np.float32, 2, 200)
    bad = dict(f, past_key=f["past_key"][:, :, :-1])

    def calls(n):
        for i in range(n):
            s.run(None, f)
            if i % 10 == 0:
                try:
                    s.run(None, bad)
                except Exception as e:
                    assert "FirstPassageAttention: past_value has shape" in str(e), e
                else:
                    raise AssertionError("no error")

    calls(300)
    gc.collect()
    before = resident()
    calls(3000)
    grown = resident() - before
    assert grown < 8, f"memory grew by {grown:.1f} MiB"
    return grown


def in_a_child(library, path, queue):
    f = feed(3, np.float32, 4, 30)
    queue.put(session(library, path).run(None, f)[0])


def spawned(library, path):
    """A process started by spawn, as the page of the plugin says to."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=in_a_child, args=(library, path, queue))
    child.start()
    got = queue.get(timeout=120)
    child.join(120)
    check(session(library, path).run(None, feed(3, np.float32, 4, 30))[:1], [got])


def long(library, path):
    """Prefill of 4096: one matrix of scores would take 512 MiB."""
    s, f = session(library, path), feed(4, np.float32, 4096, 1)
    before = resident()
    out = s.run(None, f)
    size = sum(x.nbytes for x in out) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before
    assert peak < size + 48, f"{peak:.0f} MiB at most beside outputs of {size:.0f} MiB"
    return peak - size


def main():
    library, paths = sys.argv[1], sys.argv[2:]
    ort.set_default_logger_severity(4)
    print(f"prefill of 4096: {long(library, paths[0]):.0f} MiB beside the outputs")
    print(f"{side_by_side(library, paths)} calls by 8 threads on 4 sessions")
    come_and_go(library, paths[0])
    print(f"3,300 calls: memory grew by {steady(library, paths[0]):.1f} MiB")
    spawned(library, paths[0])


if __name__ == "__main__":
    main()
