"""A language model fine-tuned with LoRA by peft: adapters are trained, each step one executable.

    python -m docs.examples.recipes.lora
    python -m docs.examples.recipes.lora --model FOLDER --text FILE

`--model` names the folder of a model of transformers and its tokenizer. Without it, a small Llama
learns Python from the sources of the standard library first. Its adapters then learn English, from
the help texts that Python ships.
"""

import pathlib
import pydoc_data.topics
from collections.abc import Callable, Sequence

import peft
import torch
import transformers

import xla_dynamo
from docs.examples import gpt
from docs.examples.progress import plot, track
from docs.examples.recipes.common import beside_eager, eager_step, options_of

CONTEXT = 128  # tokens of an example


def small_model(vocabulary: int, layers: int) -> transformers.PreTrainedModel:
    """A Llama with random weights, 0.2 million in each layer."""
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=layers,
            num_attention_heads=4,
        )
    )


def loss_fn(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Cross entropy, in nats a token, of i64[batch, CONTEXT]; transformers shifts the labels."""
    return model(input_ids=tokens, labels=tokens).loss


def batches(tokens: Sequence[int], size: int) -> Callable[[], torch.Tensor]:
    """A function that draws batches i64[size, CONTEXT] from a text."""
    if len(tokens) <= CONTEXT:
        raise SystemExit(f"the text has {len(tokens)} tokens, and needs more than {CONTEXT}")
    text = torch.tensor(tokens)

    def draw() -> torch.Tensor:
        starts = torch.randint(len(text) - CONTEXT, (size, 1))
        return text[starts + torch.arange(CONTEXT)]

    return draw


def train(
    model: torch.nn.Module, draw: Callable[[], torch.Tensor], steps: int, lr: float, what: str
) -> tuple[list[float], torch.optim.Optimizer, Callable[..., torch.Tensor]]:
    """Train the parameters that ask for gradients; return losses, optimizer and step."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=lr, total_steps=steps, pct_start=0.1, cycle_momentum=False
    )
    step = xla_dynamo.train_step(model, loss_fn, optimizer)
    losses = []
    for _ in track(range(steps), what):
        losses.append(float(step(draw())))
        schedule.step()
    few = losses[-10:]
    print(f"{what}: {losses[0]:.2f} nats a token at first, {sum(few) / len(few):.2f} at the end")
    return losses, optimizer, step


def main(arguments: Sequence[str] | None = None) -> tuple[list[float], torch.nn.Module]:
    """Fine-tune, save, merge and generate; return the losses and the merged model."""
    parser = options_of(__doc__, "lora", steps=200)
    parser.add_argument("--model", help="a folder of a model and its tokenizer")
    parser.add_argument("--text", type=pathlib.Path, help="a file of what is to be learned")
    parser.add_argument("--pretraining", type=int, default=600, help="steps, without a folder")
    parser.add_argument("--layers", type=int, default=2, help="without a folder")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rank", type=int, default=8, help="of the adapters")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)

    text = "\n\n".join(pydoc_data.topics.topics.values())
    if options.text:
        text = options.text.read_text()
    if options.model:
        base = transformers.AutoModelForCausalLM.from_pretrained(options.model)
        tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    else:
        python = bytes(gpt.corpus()[:1_000_000].tolist()).decode(errors="replace")
        # A tokenizer without words learns the 1024 most frequent parts of words.
        tokenizer = transformers.GPT2Tokenizer().train_new_from_iterator([python, text], 1024)
        base = small_model(len(tokenizer), options.layers)
        tokens = tokenizer.encode(python)
        train(base, batches(tokens, options.batch), options.pretraining, 5e-3, "learns Python")
    draw = batches(tokenizer.encode(text), options.batch)

    # peft freezes the model, and puts two narrow matrices beside each of its linear layers.
    lora = peft.LoraConfig(
        r=options.rank,
        lora_alpha=2 * options.rank,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    model = peft.get_peft_model(base.train(), lora)
    model.print_trainable_parameters()
    losses, optimizer, step = train(model, draw, options.steps, 1e-2, "adapters learn the text")
    model.save_pretrained(options.out / "adapters")

    # The steps that are timed must not train what was saved: their rate is 0.
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    batch = draw()
    eager = eager_step(model, loss_fn, optimizer)
    calls = {"train_step": lambda: step(batch).item(), "eager": lambda: eager(batch).item()}
    plot(
        options.out / "lora.png",
        losses={"adapters": losses},
        seconds=beside_eager("a step", calls),
    )

    # Merged, a layer is one product again, and the model is one of transformers.
    merged = model.eval().merge_and_unload()
    prompt = torch.tensor([tokenizer.encode("The ")])
    written = xla_dynamo.generate(
        merged, prompt, max_new_tokens=120, do_sample=True, temperature=0.6
    )
    print(f"adapters, loss curve and times: {options.out}/\n")
    print(tokenizer.decode(written[0]))
    return losses, merged


if __name__ == "__main__":
    main()
