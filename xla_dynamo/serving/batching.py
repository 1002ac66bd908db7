"""transformers' continuous batching, with batches padded to the sizes that are compiled."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation import ContinuousBatchingConfig
from transformers.generation.continuous_batching.continuous_api import (
    ContinuousBatchingManager,
    ContinuousBatchProcessor,
)
from transformers.generation.continuous_batching.model_runner import ModelRunner
from transformers.generation.continuous_batching.requests import (
    RequestStatus,
    create_warmup_future_states,
)

from xla_dynamo.serving.sampling import Choosing
from xla_dynamo.serving.sizes import Sizes, bound_of

# Called with the states of the requests of a batch, when their next tokens are known.
Watcher = Callable[[Sequence[Any]], None]


class PaddedRunner(ModelRunner):
    """Runs the model on batches of few sizes.

    Attributes:
        choosing: by the id of a request, how its tokens are chosen; requests that are not there
            take the likeliest token.
        watchers: what is called after each batch.
    """

    def __init__(self, like: ModelRunner, sizes: Sizes) -> None:
        """Take the place of a runner of transformers."""
        super().__init__(
            logit_processor=like.logit_processor,
            cb_config=like.cb_config,
            cache=like.cache,
            inputs_and_outputs=like.inputs_and_outputs,
            do_sample=False,
            return_logprobs=False,
        )
        self.pad_inputs = True
        self.choosing: dict[str, Choosing] = {}
        self.watchers: list[Watcher] = []
        self.token_bounds = sizes.token_bounds()
        # Never 0, for which Dynamo would make a program of its own: then padding is read.
        self.read_bounds = sizes.read_bounds(self.cache.max_tokens_read)

    def maybe_pad_inputs(
        self, num_q_tokens: int, max_kv_read: int, use_decode_fast_path: bool
    ) -> tuple[int, int]:
        """The sizes that a batch of these sizes is padded to."""
        assert not use_decode_fast_path, "the fast path needs flash attention"
        return bound_of(num_q_tokens, self.token_bounds), bound_of(max_kv_read, self.read_bounds)

    def compute_batch(self, model: torch.nn.Module, batch_data: dict[str, Any]) -> None:
        """Run the model, and choose the next tokens."""
        arguments = self._arguments(model, batch_data)
        self._forward_process_and_sample(model, arguments, *self.inputs_and_outputs.get_cb_kwargs())
        states = self._states()
        for watcher in self.watchers:
            watcher(states)

    def _states(self) -> list[Any]:
        """The states of the requests that get a token, in the order of the logits."""
        batch = self.inputs_and_outputs.requests_in_batch
        return [future.state for future in batch if future.has_new_token]

    def _sample(self, scores: torch.Tensor, output_ids: torch.Tensor) -> None:
        """Write next tokens into output_ids, [1, tokens], from scores, [1, rows, vocabulary]."""
        tokens = scores[0].argmax(-1)
        if self.choosing:
            for row, state in enumerate(self._states()):
                if choosing := self.choosing.get(state.request_id):
                    tokens[row] = token = choosing.choose(scores[0, row])
                    if choosing.is_over:  # transformers ends a request by its tokens alone
                        state._eos_token_ids.add(token)
        output_ids[0, : tokens.shape[0]] = tokens

    def _arguments(self, model: torch.nn.Module, batch: Any) -> dict[str, Any]:
        """The arguments of the model, as all batches have them.

        Dynamo has guards on strides, and on numbers: of the mask, which is a part of a larger one,
        and on the longest lengths, which only flash attention reads.
        """
        found = dict(batch)
        found["max_length_q"] = 1
        found["max_length_k"] = dict.fromkeys(batch["max_length_k"], 1)
        masks = batch["attention_mask"]
        if isinstance(masks, dict):
            found["attention_mask"] = {name: mask.contiguous() for name, mask in masks.items()}
        else:
            found["attention_mask"] = masks.contiguous()
        del found["logits_processor_args"]
        if self.supports_logits_to_keep(model):
            found["logits_to_keep"] = found["logits_indices"]
        return found

    def example(self, model: torch.nn.Module, tokens: int, read: int) -> dict[str, Any]:
        """What the model is called with for one of the padded sizes.

        The tensors are views of memory that the next example takes as well.
        """
        past = min(read, self.cb_config.page_size)
        states = create_warmup_future_states(1, RequestStatus.PREFILLING, 1, past, self.cache)
        try:
            self.inputs_and_outputs.prepare_batch_tensors(
                states, self.logit_processor, False, tokens, read, use_padding=True
            )
            batch = self.inputs_and_outputs.get_model_kwargs(use_padding=True)
        finally:
            for future in states:
                self.cache.free_blocks(future.state.request_id)
        return self._arguments(model, batch)

    def all_sizes(self) -> list[tuple[int, int]]:
        """Each pair of a number of tokens and a number of tokens to be read, the largest first."""
        return [(n, read) for n in self.token_bounds[::-1] for read in self.read_bounds[::-1]]


class PaddedManager(ContinuousBatchingManager):
    """Batches requests to a compiled model. `add_request` and `start` are transformers' own."""

    def __init__(self, model: Any, sizes: Sizes) -> None:
        """Take a causal model of transformers, and what to allocate for it."""
        self.sizes = sizes
        model.set_attn_implementation("sdpa")
        # Nothing of the model's own: each request says how it draws.
        own = model.generation_config
        generation = GenerationConfig(
            eos_token_id=own.eos_token_id if own.eos_token_id is not None else -1,
            pad_token_id=own.pad_token_id,
            max_new_tokens=sizes.longest,
            do_sample=False,
        )
        settings = ContinuousBatchingConfig(
            page_size=sizes.page,
            num_blocks=sizes.blocks,
            max_batch_tokens=sizes.batch_tokens,
            max_requests_per_batch=sizes.requests,
            max_blocks_per_request=0,
            use_async_batching=False,
            use_cuda_graph=False,
            auto_switch_to_flash=False,
        )
        with torch.no_grad():
            super().__init__(model, generation, settings)
            self.batch_processor = self._create_batch_processor()

    def _create_batch_processor(self) -> ContinuousBatchProcessor:
        processor = super()._create_batch_processor()
        if not isinstance(processor.model_runner, PaddedRunner):
            processor.model_runner = PaddedRunner(processor.model_runner, self.sizes)
        return processor

    @property
    def runner(self) -> PaddedRunner:
        """What runs the model."""
        assert self.batch_processor is not None, "the manager has been stopped"
        return self.batch_processor.model_runner
