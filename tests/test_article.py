"""The article's claims: every verdict follows from the measurements in it, and without them there is none."""

from __future__ import annotations

import json

import pytest

from profiling import article
from profiling.article import CLAIMS, LENGTHS, TABLE, WORDS, Claim, Judgement, Run
from profiling.suites import of_pair
from tests import article_runs as made_up
from tests.article_runs import failed, measured, run, wrong

NEVER = ("make_block_ptr", "bandwidth")


def claim(words: str) -> Claim:
    (found,) = [one for one in CLAIMS if words in one.text]
    return found


def said(words: str, change=made_up.same, lengths=None) -> Judgement:
    return claim(words).judge(Run.of(run(lengths, change)))


def timed(times: dict[str, float]) -> made_up.Change:
    """A change that gives versions these times, wherever they run."""
    return lambda name, cell, one: measured(name, cell, times[name]) if name in times else one


# Without measurements


def test_without_a_measurement_there_is_no_verdict_and_no_number_of_ours():
    found = article.judged(Run.of([]))
    assert {one.word for _, one in found} == {"not measured"}
    assert article.summary(found) == f"none of {len(CLAIMS)} is measured yet"
    assert not any(" ms" in one.why or "×" in one.why for _, one in found)


@pytest.mark.parametrize("length", [512, 1024, 4096, 16384, 32768])
def test_what_only_another_length_decides_is_not_judged(length):
    for one, judgement in article.judged(Run.of(run([length]))):
        if judgement.word != "not measured":
            assert f"{length:,}" in one.text or f"{length:,}" in one.decided_by or one.about == "Blocks"


def test_what_was_run_in_the_interpreter_decides_nothing():
    from tests.records_for_tests import in_interpreter

    def interpreted(name, cell, one):
        whole = in_interpreter("v2")
        request = one.request.model_copy(update={"device": "interpreter"})
        return whole.model_copy(update={"request": request, "tiles": one.tiles})

    assert {one.word for _, one in article.judged(Run.of(run(change=interpreted)))} == {"not measured"}


def test_a_wrong_output_is_a_reason_for_no_verdict_never_a_number():
    found = said("v2 is 15 to 20", lambda name, cell, one: wrong(one) if name == "v2" else one)
    assert found.word == "not measured"
    assert found.why.startswith("v2 at 16,384 tokens has no time: ")
    assert "ms" not in found.why.replace("tokens", "")


def test_two_claims_are_never_judged_as_nothing_here_counts_them():
    for words in NEVER:
        assert said(words).word == "not measured"
        assert said(words).why.startswith(("No kernel here", "FlashScope reads no"))


# The table


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("one", TABLE[1:], ids=lambda one: one.version)
def test_a_row_of_the_table_holds_exactly_from_its_own_ratio_to_native_on(one, length):
    ratio = TABLE[0].ms[length] / one.ms[length]
    words = f"{one.version} is "
    (row,) = [found for found in CLAIMS if found.about == "Its table" and words in found.text and f"{length:,}" in found.text]
    for factor, word in ((1.02, "holds"), (0.98, "does not hold")):
        times = {"native": 10.0, one.version: 10.0 / (ratio * factor)}
        found = row.judge(Run.of(run(change=timed(times))))
        assert found.word == word
        assert found.why.startswith("native ")
        assert f"{one.version} " in found.why


def test_the_table_is_the_article_s():
    assert {one.version: (*one.ms.values(), one.memory_mb) for one in TABLE} == {
        "native": (0.50, 45.21, 2468), "v1": (0.07, 13.98, 184), "v2": (0.06, 13.73, 168), "v3": (0.05, 1.77, 168),
    }  # fmt: skip


# Speed


@pytest.mark.parametrize(
    ("words", "slower", "faster", "least"),
    [
        ("15 to 20 %", "v1", "v2", 1.15),
        ("2 to 3 times", "v1", "v2", 2.0),
        ("nearly 8 times", "v2", "v3-hopper", 7.0),
    ],
)
def test_a_gain_is_judged_by_the_ratio_of_two_times_of_one_job(words, slower, faster, least):
    for factor, word in ((1.02, "holds"), (0.98, "does not hold")):
        found = said(words, timed({slower: 20.0, faster: 20.0 / (least * factor)}))
        assert found.word == word
        assert "20.0 ms" in found.why
        assert f"{least * factor:.3g}"[:3] in found.why


def test_the_fastest_v3_speaks_for_v3_with_fp8_too():
    found = said("nearly 8 times", timed({"v2": 20.0, "v3": 15.0, "v3-hopper": 12.0, "v3@fp8=yes": 2.0}))
    assert found.word == "holds"
    assert "v3 FP8 2.00 ms" in found.why


def test_more_than_claimed_is_said():
    assert said("15 to 20 %", timed({"v1": 20.0, "v2": 10.0})).why.endswith("2.00×, more than the 1.15 to 1.20× claimed.")


def test_v3_is_the_only_choice_where_nothing_else_right_takes_less_than_twice_its_time():
    slow = {"native": 100.0, "v1": 50.0, "v2": 30.0, "v3": 10.0, "v3-hopper": 11.0, "v3@fp8=yes": 12.0}
    assert said("only choice", timed(slow)).word == "holds"
    found = said("only choice", timed(slow | {"v2": 15.0}))
    assert found.word == "does not hold"
    assert found.why == "v2 is right too and takes 15.0 ms, v3 10.0 ms (the fastest of v3, v3-hopper and v3 FP8): 1.50×."

    def without_v2(name, cell, one):
        return wrong(one) if name == "v2" else timed(slow | {"v2": 15.0})(name, cell, one)

    assert said("only choice", without_v2).word == "holds"


# Memory


def test_memory_is_judged_by_what_launches_added():
    assert said("less memory").why == (
        "A launch of native adds 1.00 GiB to its inputs, one of v1 4.25 MiB: 241×, more than the 5 to 10× claimed."
    )

    def frugal(name, cell, one):
        if name != "native":
            return one
        return one.model_copy(update={"memory": one.memory.model_copy(update={"torch_added_bytes": 4 << 22})})

    assert said("less memory", frugal).word == "does not hold"


def test_fp8_s_storage_is_judged_by_what_its_operands_held_and_not_without():
    assert said("FP8 stores").word == "not measured"
    numbers = 3 * 16 * 16384 * 32

    def holding(count):
        def change(name, cell, one):
            if name != "v3@fp8=yes" or one.memory is None:
                return one
            return one.model_copy(update={"memory": one.memory.model_copy(update={"operands_bytes": count})})

        return change

    assert said("FP8 stores", holding(numbers)).word == "holds"
    with_scales = said("FP8 stores", holding(numbers + 3 * 4 * 16 * 16384))
    assert with_scales.word == "does not hold"
    assert with_scales.why == (
        "Q, K and V take 27.0 MiB in FP8 with their scales, 71.9 % less than FP32’s 96.0 MiB, "
        "43.8 % less than the 48.0 MiB in bf16 that they replace."
    )


# Blocks


def test_a_pair_holds_where_nothing_else_of_v2_is_faster_by_more_than_a_hundredth():
    pair = of_pair(32, 512)
    assert said("32 × 512").word == "does not hold"
    assert said("32 × 512").why == "At 16,384 tokens v2 takes 9.00 ms with it, 2.00 ms with 64 × 64: 4.50× as long."
    assert said("32 × 512", timed({pair[0]: 2.01})).word == "holds"
    assert said("32 × 512", timed({pair[1]: 1.5})).why.endswith("nothing tried was faster by more than 1 %.")


def test_a_pair_of_two_lengths_must_hold_at_both():
    first = of_pair(64, 256)[0]

    def only_at(length):
        return lambda name, cell, one: measured(name, cell, 1e-3) if name == first and cell.problem.seq_len_q == length else one

    assert said("64 × 256", only_at(1024)).word == "does not hold"
    assert said("64 × 256", timed({first: 1e-3})).word == "holds"
    assert said("64 × 256", timed({first: 1e-3}), lengths=[4096]).word == "not measured"


def test_a_pair_that_no_setting_of_compiles_does_not_hold_and_one_that_crashed_is_not_judged():
    sentence = "It needs 296 KiB of shared memory; a program has 99 KiB."

    def fails(kind):
        return lambda name, cell, one: failed(one, kind, sentence) if name in of_pair(32, 512) else one

    assert said("32 × 512", fails("compile")) == Judgement("does not hold", sentence)
    assert said("32 × 512", fails("crashed")).word == "not measured"


# A run, whole


def test_every_word_and_every_line_of_a_whole_run():
    found = article.judged(Run.of(run()))
    assert {one.word for _, one in found} == set(WORDS)
    assert all(one.why.endswith(".") and "\n" not in one.why for _, one in found)
    assert all(words.text.endswith(".") and len(words.text) < 120 for words, _ in found)
    counts = [sum(one.word == word for _, one in found) for word in WORDS]
    holds, fails, missing = counts
    assert article.summary(found).startswith(f"{holds} hold")
    assert sum(counts) == len(CLAIMS)
    assert f"{fails} do" in article.summary(found)
    assert f"{missing} are not measured" in article.summary(found)


def test_of_a_length_that_was_run_twice_the_newest_counts():
    old = run(change=timed({"v1": 20.0, "v2": 10.0}))
    new = run([16384], began="2026-11-30T12:00:00+00:00")
    found = claim("15 to 20 %").judge(Run.of([*new, *old]))
    assert "v1 2.40 ms, v2 2.00 ms" in found.why


def test_the_words_of_a_run_for_a_terminal_and_for_a_program():
    whole = Run.of(run())
    lines = article.text(whole).splitlines()
    assert len(lines) == 1 + 2 * len(CLAIMS)
    assert lines[0].startswith("What the article claims: ")
    assert json.loads(json.dumps(article.as_json(whole)))[0].keys() == {"claim", "decided_by", "word", "why"}
