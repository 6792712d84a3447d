"""An export in lm-eval: a local task, with the number of loops as an argument of the model."""

import json
import math
from importlib.util import find_spec

import pytest
import torch

from tests import exported
from tests.exported import MAX_LOOPS, SEED
from twoscale.model.noise import EvaluationNoise

pytestmark = pytest.mark.skipif(
    find_spec("lm_eval") is None or find_spec("transformers") is None,
    reason="needs lm-eval and transformers: make test-tools SUITE=release",
)

TEXTS = ("Return the value", "the loop of a", "x = [1, 2]")
ROLLING = """\
task: local_text
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list:
  - metric: byte_perplexity
"""
CHOICE = """\
task: local_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list:
  - metric: acc
"""


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    return exported.export(tmp_path_factory.mktemp("lm_eval"))


@pytest.fixture(scope="module")
def tasks(tmp_path_factory, release):
    """A folder with two tasks. The answers of the second are the choices of the model at two
    loops.
    """
    folder = tmp_path_factory.mktemp("tasks")
    documents = [{"text": text, "choices": ["a", "b", "c"]} for text in TEXTS]
    for document in documents:
        # after the text, not after an end of text, and a space before each choice
        prompt = release.tokenizer.encode(document["text"])
        scores = [nats(release, prompt, f" {choice}", 2) for choice in document["choices"]]
        document["answer"] = scores.index(min(scores))
    (folder / "texts.jsonl").write_text(
        "".join(json.dumps(document) + "\n" for document in documents)
    )
    for name, task in (("rolling", ROLLING), ("choice", CHOICE)):
        (folder / f"{name}.yaml").write_text(task.format(file=folder / "texts.jsonl"))
    return folder


def nats(release, prompt, text, loops):
    """Cross-entropy of a text after the ids of a prompt, summed over its tokens."""
    tokens = torch.tensor([[*prompt, *release.tokenizer.encode(text)]])
    noise = EvaluationNoise.of(release.model.config, SEED, [0])
    with torch.no_grad():
        logits = release.model(tokens[:, :-1], [loops] * len(release.model.config.groups), noise)
    first = len(prompt) - 1
    return torch.nn.functional.cross_entropy(
        logits[0, first:], tokens[0, first + 1 :], reduction="sum"
    ).item()


def measure(release, tasks, task, arguments):
    arguments = f"pretrained={release.folder},trust_remote_code=True,dtype=float64{arguments}"
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    found = simple_evaluate(
        model="hf",
        model_args=arguments,
        tasks=[task],
        task_manager=manager,
        device="cpu",
        batch_size=2,
    )
    return found["results"][task]


@pytest.mark.parametrize(
    ("arguments", "loops"), [("", MAX_LOOPS), (",max_loops=1", 1), (",max_loops=2", 2)]
)
def test_the_perplexity_of_a_text_is_that_of_the_library_at_these_loops(
    release, tasks, arguments, loops
):
    result = measure(release, tasks, "local_text", arguments)
    size = sum(len(text.encode()) for text in TEXTS)
    end = [release.tokenizer.end_of_text]
    expected = math.exp(sum(nats(release, end, text, loops) for text in TEXTS) / size)
    assert result["byte_perplexity,none"] == pytest.approx(expected, rel=1e-9)


def test_choices_are_those_of_the_library_at_these_loops(release, tasks):
    assert measure(release, tasks, "local_choice", ",max_loops=2")["acc,none"] == 1.0


def test_an_exit_criterion_and_a_checkpoint_are_arguments_too(release, tasks):
    full, early, first = (
        measure(release, tasks, "local_text", arguments)["byte_perplexity,none"]
        for arguments in (
            "",
            ",exit_criterion=fixed,exit_threshold=1",
            ",subfolder=iteration_000000",
        )
    )
    one = measure(release, tasks, "local_text", ",max_loops=1")["byte_perplexity,none"]
    assert early == pytest.approx(one, rel=1e-9) != full
    assert first != pytest.approx(full, rel=1e-3)
