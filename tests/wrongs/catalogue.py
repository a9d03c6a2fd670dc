"""Small, realistic mistakes in the product, each of which the tests must notice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Wrong:
    """One mistake: a piece of the source, and a plausible wrong change of it."""

    name: str
    """Short, for the table and `--only`."""
    file: str
    """Path from the root of the project."""
    old: str
    """What the file holds exactly once."""
    new: str
    """What replaces it."""
    why: str
    """What it would do to a user."""


_STORE = (
    Wrong(
        "manifest-first",
        "rloop_core/store/manifest.py",
        """\
    for file in files:
        _upload(store, folder / file.path, f"{target}/{file.path}")
""",
        """\
    store.write_bytes(key, text)
    for file in files:
        _upload(store, folder / file.path, f"{target}/{file.path}")
""",
        "A run killed while it publishes leaves an artifact that exists and is not whole.",
    ),
    Wrong(
        "old-manifest-stays",
        "rloop_core/store/manifest.py",
        """\
    store.delete(key)
    with contextlib.suppress(StoreError):  # leftovers only cost space
        store.prune(target)
""",
        """\
    with contextlib.suppress(StoreError):  # leftovers only cost space
        store.prune(target, {key})
""",
        "While a stage is published again, its old manifest names files that are being replaced.",
    ),
    Wrong(
        "any-sha256",
        "rloop_core/store/manifest.py",
        '    return None if file_sha256(path) == file.sha256 else "was altered: its sha256 differs"\n',
        "    return None\n",
        "An altered file of the right length is trained on.",
    ),
    Wrong(
        "digest-of-paths",
        "rloop_core/rollout/policy.py",
        "content_digest((path.name, file_sha256(path))",
        "content_digest((str(path), file_sha256(path))",
        "The same policy in another folder is another policy, and everything runs again.",
    ),
    Wrong(
        "lease-unchecked",
        "rloop_core/stages/runner.py",
        "        self.store = store.guarded(lease.ensure_held) if lease else store\n",
        "        self.store = store\n",
        "Two machines write one run after the first was taken for dead.",
    ),
    Wrong(
        "lease-not-renewed",
        "rloop_core/store/lease.py",
        "                self._heartbeats += 1\n",
        "",
        "A living holder looks silent from another machine, which takes its run.",
    ),
    Wrong(
        "held-without-a-lease",
        "rloop_core/store/lease.py",
        """\
        if holder is None:
            self._lost = self._lost or "is gone: it was deleted, or another process has used and released it"
        elif (holder""",
        """\
        if holder and (holder""",
        "A holder that was frozen while another one did the whole run replaces what that one has finished.",
    ),
    Wrong(
        "manifest-replaced",
        "rloop_core/store/manifest.py",
        "    if not store.create_bytes(key, text):\n",
        "    store.write_bytes(key, text)\n    if store.find_bytes(key) != text:\n",
        "A process that is frozen just before it writes its manifest replaces another one's when it wakes.",
    ),
    Wrong(
        "records-of-any-size",
        "rloop_core/store/objects.py",
        "start=0, end=most + 1, ",
        "",
        "One object of gigabytes takes the memory of everybody who looks at the store.",
    ),
    Wrong(
        "done-without-files",
        "rloop_core/stages/runner.py",
        """\
            with fetched(self.store, manifest, self._cache()):
                pass
""",
        "",
        "A stage is Cached although its files are gone or damaged.",
    ),
    Wrong(
        "done-with-another-config",
        "rloop_core/stages/runner.py",
        "            if manifest.fingerprint != wanted.fingerprint:\n",
        '            if manifest.identity["stage"] != wanted.stage:\n',
        "A changed config gets the artifacts of the old one.",
    ),
    Wrong(
        "second-start-replaces",
        "rloop_core/stages/identity.py",
        "    if not lost or config.placement.replace:\n",
        "    if lost or not config.placement.replace:\n",
        "A second start of a name with other parameters replaces a finished run without a question.",
    ),
    Wrong(
        "healing-refused",
        "rloop_core/stages/identity.py",
        '            if not ref.digest or (artifacts and ref.kind == "artifact" and _same_place(ref, entry))\n',
        "            if not ref.digest\n",
        "What builds on a damaged artifact that a GPU makes again with other weights is not made again.",
    ),
    Wrong(
        "status-by-config",
        "rloop_core/results/status.py",
        '    if manifest is not None and standing.state == "done":\n',
        "    if manifest is not None:\n",
        "Status says done of what the next start computes again: another policy, problem set or version.",
    ),
    Wrong(
        "placement-in-fingerprint",
        "rloop_core/stages/stage.py",
        '"seed": config.seed}',
        '"seed": config.seed, "device": config.placement.device}',
        "A finished run is computed again on a machine with a GPU.",
    ),
    Wrong(
        "unknown-fields",
        "rloop_core/config/base.py",
        'extra="forbid"',
        'extra="ignore"',
        "A misspelt setting is silently the default.",
    ),
)

_EXPLORE = (
    Wrong(
        "prompts-end-with-eos",
        "rloop_core/rollout/prompts.py",
        'rows["input_ids"] if chat else list(map(_without_end, rows["input_ids"], rows["special_tokens_mask"]))',
        'rows["input_ids"]',
        "Where a tokenizer appends an eos, the policy is asked to go on after it.",
    ),
    Wrong(
        "generation-config-inherited",
        "rloop_core/rollout/policy.py",
        "            generation_config=GenerationConfig(eos_token_id=_declared_eos(folder)),\n",
        "",
        "What a model's generation_config.json recommends bends rollouts and evaluations.",
    ),
    Wrong(
        "dropout-left-on",
        "rloop_core/rollout/policy.py",
        "    _make_plain(model)\n",
        "",
        "A policy whose config has dropout is updated with other probabilities than it sampled with.",
    ),
    Wrong(
        "clip-bounds-swapped",
        "rloop_core/config/objectives.py",
        '"epsilon": clip_low, "epsilon_high": ceiling}',
        '"epsilon": ceiling, "epsilon_high": clip_low}',
        "Clip-higher becomes clip-lower: exploration dies sooner.",
    ),
    Wrong(
        "overlong-is-rewarded",
        "rloop_core/training/settings.py",
        "reward_weights=[1.0, explore.overlong.penalty]",
        "reward_weights=[1.0, -explore.overlong.penalty]",
        "Long completions are rewarded.",
    ),
    Wrong(
        "dropped-groups-not-recorded",
        "rloop_core/training/trainer.py",
        "            self.recorder.write(step, rows)\n",
        '            self.recorder.write(step, [row for row in rows if row["kept"]])\n',
        "Success rates are measured on groups that had variance, so nothing is hard.",
    ),
    Wrong(
        "sampling-by-reward",
        "rloop_core/training/trainer.py",
        "informative_groups(scores, size)",
        "informative_groups(self._last_rewards.tolist(), size)",
        "With an overlong punishment, problems that are always solved fill the update.",
    ),
    Wrong(
        "every-pass-alike",
        "rloop_core/training/groups.py",
        "seeds = [self._seed, which, source] if source else [self._seed, which]",
        "seeds = [self._seed, source] if source else [self._seed]",
        "Each pass over the problems has the same order: the seed is not mixed with the pass.",
    ),
    Wrong(
        "resumes-a-step-early",
        "rloop_core/training/explore.py",
        "cursor=checkpoint.cursor if checkpoint else 0",
        "cursor=checkpoint.cursor - job.config.explore.problems_per_step if checkpoint else 0",
        "A resumed phase meets the last RL step's problems twice.",
    ),
    Wrong(
        "damaged-checkpoint",
        "rloop_core/training/checkpoints.py",
        "damage = _damage(directory.parent, checkpoint)",
        "damage = None",
        "A phase goes on from a checkpoint without its optimizer's state, exit 0, with other weights.",
    ),
    Wrong(
        "early-end-is-success",
        "rloop_core/training/explore.py",
        "    if reached != wanted:  # training",
        "    if reached > wanted:  # training",
        "A phase that ended half-way is published.",
    ),
    Wrong(
        "lower-attempt-wins",
        "rloop_core/trajectories/shards.py",
        "attempt > best[key][0]",
        "attempt < best[key][0]",
        "After a crash the record holds rollouts that the policy was not trained on.",
    ),
    Wrong(
        "one-seed-for-all-iterations",
        "rloop_core/stages/execute.py",
        "derive_seed(config.seed, job.stage, job.iteration)",
        "derive_seed(config.seed, job.stage)",
        "Every iteration draws in the same order with the same noise.",
    ),
)

_EXPERTS = (
    Wrong(
        "hard-includes-the-threshold",
        "rloop_core/trajectories/filter.py",
        '(pl.col("rate") < threshold)',
        '(pl.col("rate") <= threshold)',
        "Problems solved in exactly a tenth of the attempts count as hard.",
    ),
    Wrong(
        "rft-from-the-endpoint",
        "rloop_core/stages/rft.py",
        'if config.rft.start == "rl-endpoint":',
        'if config.arm == "rloop":',
        "RFT keeps what RL forgot: the method is another one.",
    ),
    Wrong(
        "nan-is-published",
        "rloop_core/training/rft.py",
        "    if not trainer.weights_are_finite():\n",
        "    if not losses:\n",
        "Fine-tuning whose last update is infinite ends well, with a policy that answers nothing.",
    ),
    Wrong(
        "prompt-not-masked",
        "rloop_core/training/rft.py",
        "masks = [[0] * len(prompt) + [1] * len(completion)",
        "masks = [[1] * len(prompt) + [1] * len(completion)",
        "RFT learns to write problems.",
    ),
    Wrong(
        "eos-not-learned",
        "rloop_core/training/rft.py",
        "[1] * len(completion) for prompt",
        "[1] * (len(completion) - 1) + [0] for prompt",
        "The fine-tuned policy forgets to stop.",
    ),
)

_VERIFIER = (
    Wrong(
        "first-box",
        "rloop_core/verifier/read/extract.py",
        "last = (start, token.start(), token.end())",
        "last = last or (start, token.start(), token.end())",
        "An intermediate result is judged instead of the answer.",
    ),
    Wrong(
        "cut-box-answers",
        "rloop_core/verifier/read/extract.py",
        "    if last is None or content_start > last[1]:\n",
        "    if last is None:\n",
        "A completion that was cut inside its box is judged by an earlier one.",
    ),
    Wrong(
        "truncated-can-be-right",
        "rloop_core/verifier/verifier.py",
        "            elif not finished:\n",
        "            elif not finished and not answer:\n",
        "Completions that ran out of budget are rewarded.",
    ),
    Wrong(
        "timeout-is-cached",
        "rloop_core/verifier/verifier.py",
        "        if outcome.verdict is not Verdict.correct and outcome.verdict is not Verdict.wrong:\n"
        "            return\n",
        "",
        "One busy moment decides about an answer for the rest of the run.",
    ),
    Wrong(
        "the-rest-is-skipped",
        "rloop_core/verifier/read/grammar.py",
        "        if self._at < len(self._tokens):\n            raise",
        "        if self._at > len(self._tokens):\n            raise",
        "What follows the part of an answer that is understood does not count.",
    ),
    Wrong(
        "variables-are-units",
        "rloop_core/verifier/read/quantities.py",
        "    return plain and (before.kind",
        "    return (before.kind",
        "2 is accepted where the answer is 2nm.",
    ),
    Wrong(
        "no-points-at-breakpoints",
        "rloop_core/verifier/engine/expressions.py",
        "chain(islice(points, 4), special, islice(points, _TRIES))",
        "islice(points, _TRIES)",
        "x is accepted where the answer is min(x, 10^9).",
    ),
)

_PROBLEMS = (
    Wrong(
        "one-id-for-two-golds",
        "rloop_core/cli/judging.py",
        "if str(golds.setdefault(row.problem_id, row.answer)) != str(row.answer):",
        "if str(golds.setdefault(row.problem_id, row.answer)) is None:",
        "Two sets that count their problems from 0 are scored as one, and pass@2 is 100 %.",
    ),
    Wrong(
        "inputs-are-written-over",
        "rloop_core/cli/problems.py",
        "if out and out.exists():",
        "if out and out.is_dir():",
        "rloop problems --against EVALFILE --out EVALFILE replaces the evaluation set by the training set.",
    ),
    Wrong(
        "one-id-for-two-problems",
        "rloop_core/problems/loading.py",
        "if same and exact_id(same.first.problem) != exact_id(text):",
        "if same is None:",
        "`find a` and `find A`, 3\u00b2 and 32 are merged, or left out as contradictions.",
    ),
    Wrong(
        "one-of-the-golds",
        "rloop_core/problems/sources.py",
        '" OR ".join(f"${gold}$" for gold in sorted(golds))',
        "sorted(golds)[0]",
        "Of a list of acceptable answers only one is accepted.",
    ),
    Wrong(
        "evaluation-problems-are-trained-on",
        "rloop_core/stages/problem_store.py",
        "load_problems(source).without(without) if without else load_problems(source)",
        "load_problems(source)",
        "A problem of an evaluation set is trained on, and its pass@k measures memory.",
    ),
)

_FIGURES = (
    Wrong(
        "falls-without-a-course",
        "rloop_core/results/forgetting.py",
        "if sum(policy.step > 0 for policy in path) < 2:",
        "if len(path) < 2:",
        "The end minus the base is shown as the fall from a peak that nobody looked for.",
    ),
    Wrong(
        "pass-at-k-off-by-one",
        "rloop_core/evaluation/metrics.py",
        "np.maximum(total - taken, 1)",
        "np.maximum(total - taken - 1, 1)",
        "pass@k comes out too high.",
    ),
    Wrong(
        "bootstrap-unpaired",
        "rloop_core/results/table.py",
        "values[name] - other[name] if other",
        "values[name] - np.roll(other[name], 1, axis=-1) if other",
        "Each problem is compared with its neighbour: intervals of differences are far too wide.",
    ),
    Wrong(
        "transitions-transposed",
        "rloop_core/results/forgetting.py",
        "forgetting.T.copy(), forgetting, null, high)",
        "forgetting, forgetting.T.copy(), null, high)",
        "Learning is shown as forgetting.",
    ),
    Wrong(
        "report-unescaped",
        "rloop_core/results/page.py",
        "autoescape=True",
        "autoescape=False",
        "A completion runs scripts in the reader's browser.",
    ),
)

_PROCESSES = (
    Wrong(
        "grandchildren-survive",
        "rloop_core/stages/process.py",
        "        _end_tree(stage)\n",
        "        process.kill()\n",
        "What a stage started goes on after it, and holds the GPU.",
    ),
    Wrong(
        "cancelled-goes-on",
        "tasks/stages.py",
        "ensure(stage, iteration, should_stop=run.stop.is_set)",
        "ensure(stage, iteration, should_stop=lambda: False)",
        "A stage beside one that failed or was cancelled goes on.",
    ),
    Wrong(
        "secrets-in-logs",
        "rloop_core/printable.py",
        "        text = text.replace(secret, MASK)\n",
        "        text = text.replace(secret, secret)\n",
        "Keys from the environment are printed and kept in logs.",
    ),
    Wrong(
        "half-a-scratch",
        "rloop_core/stages/runner.py",
        '            work.rename(work.with_name(f".done-{uuid.uuid4().hex}"))\n',
        "            pass\n",
        "A run killed while it tidies up goes on from what it had left, once its artifact is damaged.",
    ),
    Wrong(
        "left-over-launcher",
        "rloop_core/runtime/environment.py",
        "if not (is_foreign(name) or _PREFECT.fullmatch(name))",
        "if not _PREFECT.fullmatch(name)",
        "A WORLD_SIZE that the shell still holds hangs a stage; a precision that it holds changes what is computed.",
    ),
    Wrong(
        "password-in-stages",
        "rloop_core/runtime/environment.py",
        "if not (is_foreign(name) or _PREFECT.fullmatch(name))",
        "if not is_foreign(name)",
        "Code in a stage finds the Prefect server's password in its environment.",
    ),
    Wrong(
        "scratch-of-another-user",
        "rloop_core/files.py",
        "    others = {folder.lstat().st_uid, folder.stat().st_uid} - {os.geteuid()} - (set() if private else {0})\n",
        "    others: set[int] = set()\n",
        "A run goes on from what another user of the store left, or changes, in the folder of its unfinished work.",
    ),
    Wrong(
        "claims-unchecked",
        "rloop_core/rollout/policy.py",
        '        if claimed > held if name == "num_hidden_layers" else claimed not in dimensions:\n',
        "        if False:\n",
        "A config.json that claims ten million layers has them built before anybody looks at the weights.",
    ),
    Wrong(
        "shares-overlap",
        "rloop_core/rollout/recording.py",
        "    return range(share[0] - 1, batches, share[1])\n",
        "    return range(0, batches, share[1])\n",
        "All machines draw the batches of the first; whoever merges them draws the others alone.",
    ),
)

WRONGS = (*_STORE, *_EXPLORE, *_EXPERTS, *_VERIFIER, *_PROBLEMS, *_FIGURES, *_PROCESSES)
