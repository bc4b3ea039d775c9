"""Records survive a round trip through JSON, and refuse what is not one."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest
from pydantic import BaseModel, ValidationError

from kernels.problem import AttentionProblem, Precision, TileConfig
from profiling.record_types import Array, first_sentence
from profiling.records import (
    Accuracy,
    DeviceFacts,
    Done,
    Energy,
    Environment,
    Flag,
    Job,
    Latency,
    Measurement,
    MemoryCurve,
    MemoryPoint,
    NotedSpan,
    PhaseSpan,
    Progress,
    Ready,
    Result,
    RunRequest,
    Timeline,
    worker_message,
)
from tests.records_for_tests import on_gpu

PROBLEM = AttentionProblem(seq_len_q=256, seq_len_kv=512, num_heads=4, num_kv_heads=2, head_dim=64, causal=True)
DEVICE = DeviceFacts(id="interpreter", kind="interpreter", name="Interpreter (CPU)", missing={"gpu": "none was found"})
ENVIRONMENT = Environment(
    device=DEVICE,
    python_version="3.11.2",
    torch_version="2.13.0",
    triton_version="3.7.1",
    cuda_version=None,
    driver_version=None,
    commit=None,
    missing={"cuda_version": "there is no GPU here"},
)
REQUEST = RunRequest(
    kernel="v3",
    problem=PROBLEM,
    precision=Precision(fp8=True, fp8_scale="block"),
    tiles=TileConfig(block_m=64, block_n=32, num_warps=4, num_stages=2),
    compile_for=90,
)
LATENCY = Latency(
    provenance="interpreted", mode="wall", samples_ms=Array.of([1.5, 1.25, 2.0]), round_of=Array.of([0, 0, 1], "<i4")
)


def accuracy(passed: bool) -> Accuracy:
    return Accuracy(
        provenance="interpreted",
        relative_error=2e-3,
        max_abs_error=1e-2,
        allowed_relative_error=4e-3,
        allowed_because="bf16 keeps 8 bits",
        lse_max_abs_error=None,
        allowed_lse_error=None,
        non_finite=0,
        rows_checked=1024,
        rows_total=1024,
        passed=passed,
        missing={"lse_max_abs_error": "this version gives none"},
    )


def measurement(**fields: object) -> Measurement:
    values = {"request": REQUEST, "tiles": REQUEST.tiles, "environment": ENVIRONMENT, "started_at": "2026-01-01T00:00:00+00:00"}
    return Measurement(**{**values, "duration_s": 1.5, "accuracy": accuracy(True), "latency": LATENCY, **fields})


@pytest.mark.parametrize(
    "record",
    [
        REQUEST,
        Job(job_id="a", requests=(REQUEST, REQUEST.model_copy(update={"kernel": "v2"}))),
        measurement(flags=(Flag(name="few", severity="caution", short="n = 3", sentence="Too few samples."),)),
    ],
    ids=lambda record: type(record).__name__,
)
def test_a_record_survives_json(record: BaseModel):
    again = type(record).model_validate_json(record.model_dump_json())
    assert again == record
    assert type(record).model_validate_json(json.dumps(record.model_dump(mode="json"), allow_nan=False)) == record


@pytest.mark.parametrize(
    "message",
    [
        Ready(environment=ENVIRONMENT),
        Progress(job_id="a", phase="compile", text="v2", done=1, total=4),
        Result(job_id="a", index=0, measurement=measurement()),
        Done(job_id="a", healthy=False),
    ],
    ids=lambda message: message.type,
)
def test_a_worker_s_line_is_read_as_what_it_was(message):
    assert worker_message.validate_json(message.model_dump_json()) == message


@pytest.mark.parametrize("dtype", ["<f4", "<f8", "<i4", "<i8", "|u1"])
@pytest.mark.parametrize("shape", [(0,), (3,), (2, 3, 4)])
def test_an_array_survives_bit_by_bit(dtype, shape):
    values = np.random.default_rng(0).integers(0, 200, shape).astype(dtype)
    again = Array.model_validate_json(Array.of(values, dtype).model_dump_json()).numpy()
    assert again.dtype == np.dtype(dtype)
    assert again.shape == shape
    assert again.tobytes() == values.tobytes()


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"data": base64.b64encode(b"\0" * 15).decode()}, "needs 16 bytes, it has 15"),
        ({"data": base64.b64encode(b"\0" * 24).decode()}, "needs 16 bytes, it has 24"),
        ({"data": "no base64!"}, "not base64"),
        ({"data": "A"}, "not base64"),
        ({"shape": [-1, -2]}, "shape"),
        ({"dtype": "|O"}, "dtype"),
        ({"dtype": ">f8"}, "dtype"),
    ],
)
def test_a_broken_array_is_refused(fields, sentence):
    whole = json.loads(Array.of([1.0, 2.0]).model_dump_json())
    with pytest.raises(ValidationError) as caught:
        Array.model_validate_json(json.dumps({**whole, **fields}))
    assert sentence in first_sentence(caught.value)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["<f4", "<f8"])
def test_an_array_is_finite(dtype, number):
    with pytest.raises(ValidationError, match="an array with NaN or infinity is not possible"):
        Array.of([1.0, number], dtype)


@pytest.mark.parametrize("shape", [[2**62, 2**62], [1_000_001], [1] * 5, [0, -1], [2**62, 2**62, 0, -1]])
def test_an_array_s_shape_costs_nothing_before_it_is_refused(shape):
    with pytest.raises(ValidationError):
        Array.model_validate_json(json.dumps({"dtype": "<f8", "shape": shape, "data": ""}))


def latency(samples: object = (1.0, 2.0), rounds: object = (0, 1), dtype: str = "<i4", **fields: object) -> Latency:
    values = {"provenance": "measured", "mode": "cold", "samples_ms": Array.of(samples), "round_of": Array.of(rounds, dtype)}
    return Latency(**{**values, **fields})


@pytest.mark.parametrize(
    "make",
    [
        lambda: latency([], []),
        lambda: latency([0.0, 1.0]),
        lambda: latency([-1.0, 1.0]),
        lambda: latency([1.0, 1e10]),
        lambda: latency([1.0, 1e-13]),
        lambda: latency([[1.0, 2.0]], [[0, 1]]),
        lambda: latency(rounds=[0]),
        lambda: latency(rounds=[1, 0]),
        lambda: latency(rounds=[-1, 0]),
        lambda: latency(rounds=[0, 1], dtype="<f8"),
        lambda: latency(mode="wall"),
        lambda: latency(launches_per_sample=2),
        lambda: latency(mode="warm", launches_per_sample=0),
        lambda: latency(exposed=3),
        lambda: latency(outputs_checked=3),
        lambda: latency(stopped="bored"),
        lambda: latency(np.ones(50_001), np.zeros(50_001)),
        lambda: accuracy(True).model_copy(update={"relative_error": 1.0}),
        lambda: accuracy(True).model_copy(update={"relative_error": None}),
        lambda: accuracy(True).model_copy(update={"non_finite": 1}),
        lambda: accuracy(True).model_copy(update={"rows_checked": 0}),
        lambda: accuracy(True).model_copy(update={"rows_checked": 1025}),
        lambda: accuracy(True).model_copy(update={"lse_max_abs_error": 1.0, "allowed_lse_error": 0.5}),
        lambda: accuracy(True).model_copy(update={"end_to_end_relative_error": 1.0, "allowed_end_to_end_error": 0.5}),
        lambda: accuracy(True).model_copy(update={"relative_error": -1.0}),
        lambda: timeline(t_s=Array.of([0.0, 2.0, 1.0])),
        lambda: timeline(t_s=Array.of([-1.0, 1.0, 2.0])),
        lambda: timeline(t_s=Array.of([0.0, 1.0])),
        lambda: timeline(power_w=Array.of([1.0, 2.0])),
        lambda: timeline(power_w=Array.of([[1.0, 2.0, 3.0]])),
        lambda: timeline(power_w=Array.of([1.0, 2.0, 1e30])),
        lambda: PhaseSpan(phase="check", start_s=2.0, end_s=1.0, sampled=True),
        lambda: PhaseSpan(phase="check", start_s=2.0, end_s=1e9, sampled=True),
        lambda: DEVICE.model_copy(update={"kind": "gpu"}),
        lambda: DEVICE.model_copy(update={"memory_bytes": -1}),
        lambda: DEVICE.model_copy(update={"name": "x" * 501}),
        lambda: DEVICE.model_copy(update={"peak_bf16_tflops": 0.0}),
        lambda: REQUEST.model_copy(update={"kernel": "x" * 41}),
        lambda: measurement(with_prepass=LATENCY, latency=None, accuracy=None),
        lambda: measurement(latency=latency()),
        lambda: gpu_measurement(latency=latency(mode="warm")),
        lambda: gpu_measurement(warm=latency()),
        lambda: gpu_measurement(with_prepass=latency(mode="warm")),
        lambda: gpu_measurement(warm=latency(mode="warm"), latency=None, accuracy=None),
        lambda: measurement(warm=latency(mode="warm")),
        lambda: gpu_measurement(energy=ENERGY, accuracy=None, latency=None),
        lambda: measurement(energy=ENERGY),
        lambda: ENERGY.model_copy(update={"window_s": None}),
        lambda: ENERGY.model_copy(update={"window_s": 0.5}),
        lambda: timeline(utilisation_percent=Array.of([1.0, 2.0, 101.0])),
        lambda: timeline(memory_clock_mhz=Array.of([1.0])),
        lambda: timeline(gaps=(NotedSpan.model_construct(words="lost", start_s=2.0, end_s=1.0),)),
        lambda: MemoryCurve(points=(POINT, POINT), ended_by="memory"),
        lambda: Precision(hadamard=True),
        lambda: measurement(duration_s=-1.0),
        lambda: measurement(started_at="yesterday"),
    ],
)  # fmt: skip
def test_what_cannot_have_been_measured_is_refused(make):
    def read_again() -> None:
        found = make()
        type(found).model_validate_json(found.model_dump_json())

    with pytest.raises(ValidationError):
        read_again()


def timeline(**fields: object) -> Timeline:
    readings = dict.fromkeys(("power_w", "sm_clock_mhz", "memory_used_bytes", "temperature_c"), Array.of([1.0, 2.0, 3.0]))
    return Timeline(**{"spans": (), "t_s": Array.of([0.0, 1.0, 1.0]), **readings, **fields})


POINT = MemoryPoint(seq_len_q=1024, seq_len_kv=1024, added_bytes=1)
ENERGY = Energy(launches=5000, busy_s=1.5, window_s=1.25, energy_mj=750_000.0)


def gpu_measurement(**fields: object) -> Measurement:
    return on_gpu("v2", **{"latency": latency(), **fields})


def test_energy_of_a_launch_is_the_mean_power_times_its_time():
    assert (ENERGY.mean_w, ENERGY.launch_ms, ENERGY.per_launch_mj) == pytest.approx((600.0, 0.3, 180.0))
    found = gpu_measurement(energy=ENERGY)
    assert found.tflop_per_joule == pytest.approx(found.request.problem.flops / 1e12 / 0.18)


def test_warm_and_cold_are_two_quantities():
    found = gpu_measurement(warm=latency(mode="warm", launches_per_sample=20), missing={"latency": "why"})
    assert (found.latency.mode, found.warm.mode, found.warm.n) == ("cold", "warm", 2)
    assert latency().noise is None
    assert latency([1.0, 2.0, 3.0, 4.0, 5.0], [0] * 5).noise == pytest.approx(2.5**0.5 / 3.0)


def test_what_the_refused_ones_are_made_from_is_possible():
    for record in (latency(), accuracy(True), timeline(), DEVICE, REQUEST, measurement(), gpu_measurement(), ENERGY):
        assert type(record).model_validate_json(record.model_dump_json()) == record


def test_texts_hide_nothing_and_steer_no_terminal():
    flag = Flag(name="a\u202e", severity="info", short="\x1b[31mred\x07", sentence="two\nlines\tand 👩\u200d🔬")
    assert (flag.name, flag.short, flag.sentence) == ("a", "[31mred", "two\nlines\tand 👩\u200d🔬")


@pytest.mark.parametrize("proof", [None, accuracy(False)])
def test_a_speed_without_a_passed_check_is_refused(proof):
    with pytest.raises(ValidationError, match="a latency without a passed accuracy check is not a result"):
        measurement(accuracy=proof)
    assert measurement(accuracy=proof, latency=None).latency is None


def test_an_unknown_field_is_refused_at_every_depth():
    document = json.loads(measurement().model_dump_json())
    for path in ((), ("request",), ("request", "problem"), ("environment", "device"), ("latency", "samples_ms")):
        changed = json.loads(json.dumps(document))
        inner = changed
        for key in path:
            inner = inner[key]
        inner["speed_of_light"] = 1
        with pytest.raises(ValidationError) as caught:
            Measurement.model_validate_json(json.dumps(changed))
        assert "speed_of_light" in first_sentence(caught.value)


def test_a_sentence_about_a_foreign_field_or_value_is_one_short_printable_line():
    for field, value in (("a\x00\n\u202eb" * 50, 1), ("seed", "\x1b[31m\n" * 500), ("tiles", {"a\n": [{}] * 500})):
        document = {**json.loads(REQUEST.model_dump_json()), field: value}
        with pytest.raises(ValidationError) as caught:
            RunRequest.model_validate_json(json.dumps(document))
        sentence = first_sentence(caught.value)
        assert sentence.isprintable()
        assert len(sentence) < 250


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", '"1.5"', "true"])
def test_what_is_no_finite_number_is_refused(number):
    text = measurement().model_dump_json().replace('"duration_s":1.5', f'"duration_s":{number}')
    assert number in text
    with pytest.raises(ValidationError):
        Measurement.model_validate_json(text)


def test_a_job_keeps_to_one_problem_device_and_seed():
    for change in (
        {"seed": 1},
        {"device": "GPU-1"},
        {"problem": PROBLEM.model_copy(update={"causal": False})},
        {"inputs": "ramp"},
        {"direction": "backward"},
    ):
        with pytest.raises(ValidationError, match="must share problem, device, seed, inputs and direction"):
            Job(job_id="a", requests=(REQUEST, REQUEST.model_copy(update=change)))
    with pytest.raises(ValidationError):
        Job(job_id="a", requests=())
    with pytest.raises(ValidationError):
        Job(job_id="a", requests=(REQUEST,) * 17)


def test_a_refusal_names_the_value_and_what_is_allowed():
    with pytest.raises(ValidationError) as caught:
        TileConfig(block_m=63, block_n=64, num_warps=4, num_stages=1)
    assert first_sentence(caught.value) == "BLOCK_M = 63 is not possible: it can be 16, 32, 64, 128, 192, 256 or 512."
    with pytest.raises(ValidationError) as caught:
        Precision(dtype="fp64")
    assert first_sentence(caught.value).startswith("dtype = 'fp64' is not possible")


def test_a_record_cannot_be_changed():
    with pytest.raises(ValidationError):
        REQUEST.seed = 2


def test_interpreted_time_never_becomes_tflops():
    assert measurement().tflops is None
    measured = Latency(
        provenance="measured", mode="cold", samples_ms=Array.of([2.0, 1.0, 3.0]), round_of=Array.of([0, 0, 0], "<i4")
    )
    with pytest.raises(ValidationError, match="a latency that is measured on a device of kind interpreter is not possible"):
        measurement(latency=measured)
    on_a_gpu = ENVIRONMENT.model_copy(update={"device": DeviceFacts(id="GPU-1", kind="gpu", name="NVIDIA H200")})
    found = measurement(latency=measured, environment=on_a_gpu)
    assert found.tflops == pytest.approx(PROBLEM.flops / 2.0 / 1e9)
