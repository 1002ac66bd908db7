"""A BERT fine-tuned by the Trainer of transformers: which package does a line of Python come from?

    python -m docs.examples.recipes.bert_trainer
    python -m docs.examples.recipes.bert_trainer --model FOLDER

The texts are lines of packages of Python's standard library, and each package is a class. `--model`
names the folder of a BERT and its tokenizer. Without it, the weights of a small BERT are random,
and its tokenizer learns the words of the texts. The Trainer gets a model that compiles itself, and
calls it as ever: forward and backward are compiled, and the optimizer is the Trainer's own.
"""

import copy
import pathlib
import sysconfig
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import rich.progress
import torch
import transformers

from docs.examples.progress import plot
from docs.examples.recipes.common import beside_eager, options_of

PACKAGES = ("asyncio", "email", "http", "multiprocessing", "unittest", "xml")
LENGTH = 48  # tokens of an example; longer ones are cut, and shorter ones are padded


def texts(package: str) -> Iterator[str]:
    """Three lines of code or documentation at a time, of each module of a package."""
    folder = pathlib.Path(sysconfig.get_paths()["stdlib"]) / package
    for path in sorted(folder.rglob("*.py")):
        lines = [line.strip() for line in path.read_text(errors="replace").splitlines()]
        lines = [line for line in lines if len(line) > 20]
        for start in range(0, len(lines) - 2, 3):
            yield "\n".join(lines[start : start + 3])


def small_bert(tokenizer: Any, classes: int) -> transformers.PreTrainedModel:
    """A BERT with random weights, 0.2 million in each of two layers."""
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=512,
            num_labels=classes,
        )
    )


class Bar(transformers.TrainerCallback):
    """A progress bar of rich for the Trainer."""

    def __init__(self, what: str) -> None:
        """Name what the bar is for."""
        self.what = what
        # The columns of `rich.progress.track`, which tells the time at the end.
        self.progress = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.TaskProgressColumn(),
            rich.progress.TimeRemainingColumn(elapsed_when_finished=True),
        )

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Show the bar."""
        self.task = self.progress.add_task(self.what, total=state.max_steps)
        self.progress.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Move it."""
        self.progress.update(self.task, completed=state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Leave it as it is."""
        self.progress.stop()


def accuracy(prediction: transformers.EvalPrediction) -> dict[str, float]:
    """The share of texts whose package is found."""
    return {"accuracy": float(np.mean(prediction.predictions.argmax(-1) == prediction.label_ids))}


def main(arguments: Sequence[str] | None = None) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Train compiled and in eager; return losses and held-out accuracies of both."""
    parser = options_of(__doc__, "bert_trainer", steps=300)
    parser.add_argument("--model", help="a folder of a BERT and its tokenizer")
    parser.add_argument("--packages", nargs="+", default=PACKAGES, help="of the standard library")
    parser.add_argument("--texts", type=int, default=1500, help="of each package, at most")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, help="5e-5 for a model of a folder, else 1e-3")
    options = parser.parse_args(arguments)
    transformers.set_seed(0)

    examples = [
        (text, label)
        for label, package in enumerate(options.packages)
        for text in list(texts(package))[: options.texts]
    ]
    if missing := set(options.packages) - {options.packages[label] for _, label in examples}:
        raise SystemExit(f"the standard library has no package with modules {sorted(missing)}")
    words, labels = map(list, zip(*examples, strict=True))
    if options.model:
        tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
        model = transformers.AutoModelForSequenceClassification.from_pretrained(
            options.model, num_labels=len(options.packages)
        )
    else:
        tokenizer = transformers.BertTokenizer().train_new_from_iterator(words, 4000)
        model = small_bert(tokenizer, len(options.packages))
    # The model would set it at its first call, and be compiled again at the second.
    model.config.problem_type = "single_label_classification"
    # All examples have one length, so that one executable serves all batches.
    tokens = tokenizer(words, padding="max_length", truncation=True, max_length=LENGTH)
    tokens["labels"] = labels
    rows = [{name: values[i] for name, values in tokens.items()} for i in range(len(words))]
    order = np.random.default_rng(0).permutation(len(rows))
    held_out = [rows[i] for i in order[: len(rows) // 10]]
    training = [rows[i] for i in order[len(rows) // 10 :]]

    losses, accuracies, models = {}, {}, {"compiled": copy.deepcopy(model), "eager": model}
    models["compiled"].compile(backend="openxla")
    for name, each in models.items():
        trainer = transformers.Trainer(
            each,
            transformers.TrainingArguments(
                options.out / name,
                max_steps=options.steps,
                per_device_train_batch_size=options.batch,
                per_device_eval_batch_size=options.batch,
                learning_rate=options.lr or (5e-5 if options.model else 1e-3),
                logging_steps=1,
                warmup_steps=options.steps // 10,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                use_cpu=True,
            ),
            train_dataset=training,
            eval_dataset=held_out,
            compute_metrics=accuracy,
            callbacks=[Bar(name)],
        )
        trainer.remove_callback(transformers.PrinterCallback)  # it prints each loss
        trainer.train()
        losses[name] = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        accuracies[name] = trainer.evaluate()["eval_accuracy"]
    batch = trainer.data_collator(training[: options.batch])

    def gradients(each: torch.nn.Module) -> float:
        each.train().zero_grad()
        loss = each(**batch).loss
        loss.backward()
        return loss.item()

    seconds = beside_eager(
        "forward and backward",
        {name: lambda each=each: gradients(each) for name, each in models.items()},
    )
    models["compiled"].save_pretrained(options.out / "model")
    tokenizer.save_pretrained(options.out / "model")
    plot(
        options.out / "bert_trainer.png",
        losses=losses,
        seconds=seconds,
        what="forward and backward",
    )
    found = ", ".join(f"{name} {share:.1%}" for name, share in accuracies.items())
    print(f"{len(training)} texts of {len(options.packages)} packages")
    print(f"accuracy on {len(held_out)} other texts: {found}; model, picture: {options.out}/")
    return losses, accuracies


if __name__ == "__main__":
    main()
