"""Ad hoc: correctness, then times, of the backward schedule."""
import json, os, sys, time, traceback
from dataclasses import replace
from pathlib import Path
import torch
from benchmarks.gpu.attention_backward import exact, facts_of, repeated, cell, SOURCES
from benchmarks.gpu.attention_kernels import CUDA, DTYPES, in_turns
from polytile.attention.arguments import make_args, operands, reference
from polytile.attention.problem import AttentionProblem, Causal
from polytile.candidates.attention import candidates
from polytile.candidates.triton_attention import attention_candidates
from polytile.schedule.facts import Facts
from tests.gpu.comparing import widened
from tests.gpu.test_attention import CASES, SIZE
out = Path(os.environ["OUT"]); part = sys.argv[1]; began = time.time()
def say(*a): print(f"{time.time()-began:6.1f}", *a, flush=True)
def known(problem, whole):
    return Facts(frozenset(n for n, v in whole.items() if "stride" in n and v % 16 == 0), frozenset(t.name for t in problem.tensors),
                 exact=tuple((n, whole[n]) for n in ("Hq", "Hkv", "D", "Dv")))
def made(problem, whole, word="specialised"):
    return [c.specialise(known(problem, whole)) for c in attention_candidates(problem, "attention", CUDA) if word in c.name and c.valid(whole)]
if part == "right":
    work = []
    for name, (problem, given) in CASES.items():
        if name == "heads of 256": continue
        for p in (replace(problem, backward=True, lse=name == "dense"), problem) if name in ("causal", "window") else (replace(problem, backward=True, lse=name == "dense"),):
            size = {**SIZE, "Dv": given.get("D", SIZE["D"]), **given}
            whole = {**p.dense_strides(size), **size}
            cs = made(p, whole)
            for c in cs: c.prepare()
            work.append((name, p, size, whole, cs))
    say("prepared", sum(len(w[4]) for w in work))
    bad = 0
    for name, p, size, whole, cs in work:
        args = make_args(p, size, CUDA)
        wide = list(widened(tuple(args))); reference(p)(*wide)
        results = slice(len(p.tensors) - 3, len(p.tensors)) if p.backward else slice(3, 5)
        for c in cs:
            try:
                for t in args[results]: t.fill_(float("nan"))
                first = None; same = True
                for _ in range(3):
                    repeated(c.entry(), args)(1); torch.cuda.synchronize()
                    again = [t.clone() for t in args[results]]
                    same = same and (first is None or all(map(torch.equal, first, again))); first = again
                errs = [float((m.double() - r.double()).nan_to_num(9e9).norm() / r.double().norm().clamp_min(1e-30)) for m, r in zip(args[results], wide[results])]
                ok = same and max(errs) < 2e-2
                bad += not ok
                say("ok  " if ok else "BAD ", name, c.name, "bwd" if p.backward else "fwd", ["%.1e" % e for e in errs], "same" if same else "DIFFERENT", c.resources)
            except Exception as e:
                bad += 1; say("FAIL", name, c.name, str(e)[:600])
    say("bad", bad)
else:
    shapes = [(4096, 2), (8192, 1), (1024, 8), (2048, 4)]
    cells = [cell("bf16", b, 2048 // d, 2048 // d, s, d, causal) for (s, b) in shapes for d in (128, 64) for causal in (True, False)]
    work = []
    for each in cells:
        p = AttentionProblem(DTYPES[each["dtype"]], None, Causal.BOTTOM_RIGHT if each["causal"] else Causal.NO, backward=True)
        whole = {**p.dense_strides(each["size"]), **each["size"]}
        cs = [c.specialise(known(p, whole)) for c in candidates(p, CUDA, SOURCES, None) if c.valid(whole)]
        cs = [c for c in cs if not (c.name.startswith("backward ") and "specialised" not in c.name and ("16x" in c.name or "32x" in c.name)) and c.name not in ("math", "efficient")]
        for c in cs:
            if hasattr(c, "prepare"): c.prepare()
        work.append((each, p, cs))
    say("prepared")
    rows = []
    for each, p, cs in work:
        args = make_args(p, each["size"], CUDA)
        runs = {}
        for c in cs:
            try:
                calls = repeated(c.entry(), args); calls(1); torch.cuda.synchronize(); runs[c.name] = calls
            except Exception as e: say("FAIL", c.name, str(e)[:300])
        us = in_turns(runs, 0.7)
        s = each["size"]; fl = 10.0 * s["B"] * s["Hq"] * s["Mq"] * s["Mkv"] * s["D"] * (.5 if each["causal"] else 1)
        split = {}
        for name in us:
            if "specialised" in name:
                try:
                    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as prof:
                        runs[name](3); torch.cuda.synchronize()
                    ev = [(e.name[:20], round(e.device_time_total)) for e in prof.events()][-2:]
                    split[name] = ev
                except Exception as e: split[name] = str(e)[:100]
        rows.append({"cell": each, "us": us, "split": split}); (out / "turn.json").write_text(json.dumps(rows))
        say(s["Mq"], s["D"], "causal" if each["causal"] else "dense", {n: (round(t, 1), round(fl / t * 1e-6)) for n, t in us.items()}, {k[21:]: v for k, v in split.items()})
        del args; torch.cuda.empty_cache()
